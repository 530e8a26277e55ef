"""Masked softmax and its backward: what the two ops share, and their kernels.

`forward_plan.choose` and `backward_plan.choose` choose a variant for the rows of a call; a row has
K positions. `constants` has the numbers. Gains are times on an H200 against the variant that would
otherwise be taken; docs/benchmarks/h200.md and h200-constants.md have the rows.

Forward:

| variant | taken when | why | measured gain | file |
| --- | --- | --- | --- | --- |
| short | 2 <= K <= 32, rows begin at other places than multiples of 8 bytes, without gaps between them | a thread holds whole rows, and reads stay 16 bytes wide | 17 bf16: 64 us, as tile 121 | short_rows |
| tile | a row is at most 64 KiB, or 32 KiB with unaligned masks | each row is read once, and kept in registers | no second read; [8, 16, 2048, 2048] bf16 at 101 % of a copy's speed | forward |
| long | all other rows | does not fit into registers; the second read comes from the L2 cache | 10,007 fp32 with a mask: 82 us, as tile 122 | forward_long |

Backward, which holds two operands of a row:

| variant | taken when | why | measured gain | file |
| --- | --- | --- | --- | --- |
| short | K odd, rows of 20 to 34 bytes, without gaps between them | as above | 5 fp32: 65 us, as tile 83 | short_rows |
| packed | 2 bytes a position, 16,384 < K <= 32,768 | two positions a register, so the row still fits | [4096, 32768] bf16: 198 us, as long 236 | backward_packed |
| tile | a row of both is at most 64 KiB, or 128 KiB if not skewed and of 4 or 8 bytes a position | as above | [2048, 16384] fp32: 99 us, as long 122 | backward |
| long | all other rows | as above | 10,007 fp32: 115 us, as tile 118 | backward |

Tile, long and packed each come in two forms, `SKEWED` or not. Rows are skewed if they begin at
other places than multiples of 8 bytes: a program reads the whole, aligned groups of 16 bytes of a
row by wide accesses, and its two ends, before and after these groups, by narrow ones. It is done
for rows from 128 bytes on, 64 in the backward: 65 bf16 take 55 us, unskewed 78.
"""
