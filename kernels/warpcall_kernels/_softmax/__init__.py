"""Masked softmax and its backward: what the two ops share, and their kernels.

`forward_plan.choose` and `backward_plan.choose` choose a variant for the rows of a call; a row has
K positions. `constants` has the numbers. Gains are times on an H200 against the variant that would
otherwise be taken; docs/benchmarks/h200.md and h200-constants.md have the rows.

Forward. Split takes rows that are read by accesses of 16 bytes, skewed or not, by programs that
exchange maxima and sums; `forward_plan.fits_split` has its other conditions. A call of few rows has
tiles of fewer rows than fit into them, so that no multiprocessor is idle:

| variant | taken when | why | measured gain | file |
| --- | --- | --- | --- | --- |
| short | 2 <= K <= 32, 32,768 rows or more, which begin at other places than multiples of 8 bytes, without gaps between them; rows share their mask, or masks lie as the rows of x do; with a mask and no limit K <= 12 of 4 bytes a position | a thread holds whole rows, and reads stay 16 bytes wide | 17 bf16: 42 us, as tile 121 | forward_short |
| split | a row is above 32 KiB, or above 64 KiB of 4 bytes a position without an unaligned mask; at most 128 parts, or 524,288 positions if all of them count; at most 200 rows if these have a mask and a limit | a row is read once, and so is its mask; packed if a position has 2 bytes | 50,021 bf16 with a mask: 51 us, as long 64; three rows of 106,837 with unaligned masks: 4.9 us, as long 29 | forward_split, or forward_rows if all positions count |
| tile | any other row of at most 64 KiB, or 32 KiB with unaligned masks | each row is read once, and kept in registers | no second read; [8, 16, 2048, 2048] bf16 at 101 % of a copy's speed | forward |
| long | all other rows; programs share those of at most 64 rows, or 128 of 8 bytes a position, in two launches | does not fit into registers; the second read comes from the L2 cache | 10,007 fp32 with a mask, before it was split: 82 us, as tile 122 | forward_long, long_rows |

Backward, which holds two operands of a row. Split takes rows that are read by accesses of 16 bytes,
skewed or not; the number of its positions does not count the ends of skewed rows:

| variant | taken when | why | measured gain | file |
| --- | --- | --- | --- | --- |
| short | K odd, rows of 6 to 62 bytes at 2 bytes a position, of 20 to 34 at 4, without gaps between them | as above | 3 fp16: 54 us, as tile 72 | backward_short |
| split | 2048 < K <= 524,288 of 2 bytes a position, 4096 < K <= 262,144 of 4; more than 200 rows, or rows that a tile cannot hold | programs hold a part of a row each, packed if a position has 2 bytes, and exchange sums | [1024, 65536] bf16: 101 us, as long 127 | backward_split |
| tile | a row of both is at most 64 KiB, or 128 KiB if not skewed and of 4 or 8 bytes a position | as above | [8, 16, 2048, 2048] bf16 at a copy's speed | backward |
| long | all other rows; programs share those of at most 64 rows, or 128 of 8 bytes a position, in two launches | as above | 8 bytes a position, unaligned rows | backward, long_rows |

With a bias or slopes, rows are tile or long as above; short and split take neither. The gradient of a
bias comes with that of x, from kernels of their own (bias_backward, bias_backward_plan):

| rows of both | taken when | why |
| --- | --- | --- |
| held | a row of both is at most 64 KiB | a program goes through all rows of x that have its row of the bias, and sums in registers |
| read twice | all other rows | the sums of g * y of rows come first; a program then owns a block of a row of the bias |

Of a bias of so few rows that programs would be few, each program has a part of the sum, and a launch adds the parts.

Tile, long and split each come in two forms, `SKEWED` or not. Rows are skewed if they begin at
other places than multiples of 8 bytes, or of 16 bytes if they are too long for a tile: a program reads the whole, aligned groups of 16 bytes of a
row by wide accesses, and its two ends, before and after these groups, by narrow ones. It is done
for rows from 128 bytes on, 64 in the backward: 65 bf16 take 55 us, unskewed 78.

Rows whose positions lie more than 8 elements apart, as in a softmax over another dim than the last, are read by
tiles if they lie side by side themselves and are not too long: see `rows.beside_tile`. Lanes that are
neighbours read neighbouring rows then. Others are copied first.
"""
