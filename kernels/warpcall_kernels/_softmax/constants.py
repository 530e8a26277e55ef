"""The constants that choose variants and tiles of masked softmax and its backward.

They were measured on an H200 (compute capability 9.0), and every other GPU uses them, too. None of
them depends on the number of multiprocessors, because a launch has a program for every few rows.
They depend on

- the registers of a multiprocessor, which decide how long a row can be held. They are 64 Ki on
  every compute capability that Triton compiles for (8.0 to 12.0);
- shared memory of a block. All kernels stay below the 99 KiB of compute capability 8.9, the least
  of those that are supported; tests/kernels/test_compiles_for_gpu.py holds them to it;
- the ratio of memory bandwidth to instruction rate, which moves the lengths at which variants
  change places. On another GPU that costs speed, never correctness.

`python -m bench.kernels tune masked-softmax masked-softmax-backward` measures them again. If
another GPU wants other values, they become a table by compute capability here, and the capability
joins the key of a plan. Times below are from an H200; docs/benchmarks/h200-constants.md has those
of the values that lost.
"""

from __future__ import annotations

# Bytes of rows that a warp takes: 4 loads of 16 bytes a thread. A row that would need more than
# MAX_WARPS gives each twice as many. [8, 16, 2048, 2048] bf16: 506 us, 10 % less than 4096.
TILE_BYTES = 2048
MAX_WARPS = 16
# Programs of a call below which a tile has fewer rows than fit into it. 1024 rows of 49 fp16: 1.8 us
# by 512 programs, 4.1 by 64.
TILE_PROGRAMS = 512

# Bytes of a row, of all operands that are held, up to which it stays in registers and is read once.
HELD_BYTES = 65536
# The same for forward rows whose masks are not aligned, for these take registers. 10,007 fp32: 82
# us read twice, 33 % less than held.
HELD_BYTES_MASKED = 32768
# The same for backward rows of 4 or 8 bytes a position that are not skewed, held by 32 warps.
# [2048, 16384] fp32: 99 us, 19 % less than read twice. Rows of two bytes a position would take
# twice the registers, widened.
HELD_BYTES_BACKWARD = 131072

# Backward rows of which each program holds a part: positions of a part and warps, by the itemsize.
# [1024, 65536] bf16: 101 us, 20 % less than read twice.
SPLIT = {2: (4096, 4), 4: (2048, 4)}
# Registers of a thread. 50,021 bf16: 62 us, 6 % less than with 80.
SPLIT_REGISTERS = 64
# Bytes of a row, of one operand, up to which it is not split, by the itemsize. 2048 bf16 loses 15 %.
SPLIT_BYTES = {2: 4096, 4: 16384}
# How often a program looks for the words of the other parts, which takes some 1 us each time,
# before it makes them itself.
SPLIT_TRIES = 1000

# Forward rows of which each program holds a part: positions of a part, warps, and registers of a
# thread, by the itemsize. 50,021 bf16 with a mask: 50.6 us, 21 % less than read twice.
SPLIT_FORWARD = {2: (4096, 4, 56), 4: (2048, 4, 40)}
# The same where a program takes its part of SPLIT_TAKE rows; None leaves the registers to the
# compiler. [1024, 65536] bf16: 73.8 us; by programs of 4 warps 79.5.
SPLIT_ROWS = {2: (2048, 1, 128), 4: (2048, 2, 128)}
SPLIT_TAKE = 8
# The same for rows of more positions than SPLIT_LONGER. [256, 262144] bf16: 84.6 us, 7 % less than
# with (2048, 1).
SPLIT_ROWS_LONGER = {2: (4096, 2, None), 4: (2048, 2, 128)}
SPLIT_LONGER = 131_072
# Positions of the longest such row. Longer ones were not measured.
SPLIT_MOST = 524_288
# The least number of such programs, by the itemsize. Fewer were not measured.
SPLIT_PROGRAMS = {2: 2048, 4: 4096}
# Bytes of a row up to which it is not split although it could be, by the itemsize. 16,384 bf16
# loses 5 % by it, 16,384 fp32 13 %. Rows with unaligned masks are split above HELD_BYTES_MASKED.
SPLIT_BYTES_FORWARD = {2: 32768, 4: 65536}
# Rows of a call up to which those with a mask and a limit are split, too, and backward rows are not
# split if they can be held. [192, 106837] bf16 with both: 24 us, read twice 44; of 1,024 rows of
# 50,021: 87 and 61. Backward, [112, 8192] bf16: 3.0 us, split 4.4; [256, 16384] fp32: 15.4 and 12.2.
FEW_ROWS = 200
# Registers of a thread that holds skewed rows of two bytes a position with a limit, but without a
# mask. [4093, 4099] bf16 with lengths: 17.3 us, 7 % less than with the compiler's 72.
SKEWED_PREFIX_REGISTERS = 48

# Forward rows that are read twice: positions at a time, and warps, by the itemsize. [1024, 65536]
# bf16: 88 us, 11 % less than (16384, 32).
LONG = {2: (8192, 16), 4: (16384, 32), 8: (4096, 8)}
# The same for at most FEW_LONG_ROWS rows of LEAST_LONG_PARTS blocks or more, whose parts are shared by up
# to LONG_PROGRAMS programs, in two launches. fp64 rows: [4, 128256]: 9.0 us, by four programs 127; [100, 30000]:
# 29.4 and 41.7; 200 of them: 73.8 and 70.6. 100 unaligned rows of 91,323 fp16: 40.1 and 34.4.
LONG_PART = {2: (4096, 8), 4: (4096, 8), 8: (1024, 4)}
FEW_LONG_ROWS = {2: 64, 4: 64, 8: 128}
LEAST_LONG_PARTS, LONG_PROGRAMS = 4, 512
# Backward rows that are read twice: bytes at a time, and warps; LONGER_STEP for rows of
# LONGER_BYTES or more. [1024, 65536] bf16: 126 us, 12 % less than LONG_STEP.
LONG_STEP = (32768, 16)
LONGER_STEP = (65536, 32)
LONGER_BYTES = 131072

# Rows that begin at multiples of more bytes than this are read by accesses of that width, which is
# fast enough; others are skewed if they are long, or read as one run if they are short.
NARROW_BYTES = 4
# Bytes of a row from which on skewed rows are worth their extra instructions. Forward: 65 bf16 55
# us, 30 % less than unskewed; 63 fp16 loses 3 %. Backward: 33 bf16 78 us, 17 % less; 17 bf16 loses
# 50 %.
SKEWED_BYTES = 128
SKEWED_BYTES_BACKWARD = 64

# Positions of the longest forward row that is read as one run: a thread holds rows. 17 bf16: 42 us,
# 35 % less than by single positions, which took 47 % less than a tile.
SHORT_COLUMNS = 32
# Bytes of backward rows that are read as one run, by the itemsize; only odd numbers of positions.
# 3 fp16: 54 us, 25 % less than as a tile; 31 bf16: 6 % less.
SHORT_BYTES_BACKWARD = {2: range(6, 63), 4: range(20, 35), 8: range(0)}
# Positions of the longest row that is moved in words of 8 bytes; longer ones are in words of 4.
# 17 bf16: 42 us, 13 % less than with 8 bytes; 3 fp16 loses 17 % with 4.
SHORT_WIDE_COLUMNS = 8
# Rows of a call from which on they are read so: fewer are few programs. 4096 of 17 bf16 with a mask
# of keys: 2.8 us, as tile 2.1; 32,768 of them 3.3 and 4.7.
SHORT_ROWS = 32768
# Positions of the longest row with a mask, but no limit, that is read so, by the itemsize. 2^21 of 9
# fp32 with a mask each: 65 us, as tile 81; of 13: 98 and 89. 17 fp16: 61 us, as tile 151.
SHORT_MASKED_COLUMNS = {2: 32, 4: 12}
SHORT_WARPS = 4  # of a single warp, Triton gathers by shuffles: 10 times the instructions
SHORT_THREAD_WORDS = 8  # least words of a thread, of one group of rows or several

# Rows that must share a row of the mask for their dim to be the one that is cut into tiles.
MIN_SHARED = 4
# Bytes of x that a tile along such a dim must have. A tile of 4 rows of 8 fp16 takes longer to start than to
# compute: [1, 4, 189912, 8] with a mask [189912, 8] took 119 us, where a copy takes 13.
MIN_FILLED_BYTES = 1024
# Elements between positions of a row, beyond which each position would fetch a sector of 32 bytes of its own.
# Rows that lie side by side are read several at a time then, and others are copied first.
MAX_COLUMN_STRIDE = 8
# The least rows of the dim in which they lie side by side; the bytes of a position in all rows of such a tile,
# or more, until the tile has LEAST_BESIDE_TILE; the most bytes of a tile; and its most bytes where it has rows of one
# operand only, by the itemsize. Softmax over the classes of [64, 21, 16384] fp32: 47 us, copied first 91; of [200, 256,
# 512]: 56 and 104; its gradient, of one such operand: 84 and 128; of bf16 [32, 150, 4096]: 38 and 49; of one: 110 and 68.
LEAST_BESIDE, BESIDE_BYTES, LEAST_BESIDE_TILE, BESIDE_TILE_BYTES = 16, 64, 4096, 32768
BESIDE_OTHERS_BYTES = {2: 4096, 4: 16384, 8: 16384}
# Programs of a call below which tiles of more than this have too few rows each. [3, 200, 1000] fp32: 8.6 us, copied 6.1.
BESIDE_PROGRAMS, BESIDE_FEW_BYTES = 128, 8192

# The constants of a bias were chosen without a GPU; docs/benchmarks/softmax-bias.md has times of them alone.
# Bytes of a forward row up to which it is held if it has a bias or slopes.
HELD_BYTES_ADDED = 65536
# As MIN_SHARED, of rows that have the same row of a bias.
MIN_SHARED_BIAS = 2

# The gradient of a bias. Bytes of rows of both operands that a warp takes.
BIAS_TILE_BYTES = 2048
# Bytes of a row of both operands up to which a program holds it, with the sums of the bias.
HELD_BYTES_BIAS = 65536
# Bytes of a block of a longer row, and the warps of its program.
BIAS_BLOCK, BIAS_BLOCK_WARPS = 4096, 4
# Warps of a call, up to which a sum is cut into parts; the bytes of the parts, relative to those of the call; and the
# tiles of rows that a part has at least.
BIAS_WARPS, BIAS_PARTS_SHARE, BIAS_LEAST_STEPS = 8192, 1 / 24, 4
# Positions and warps of a program that finds the sum of g * y of a long row, and how many programs share rows.
BIAS_TOTALS, BIAS_TOTALS_PROGRAMS = (4096, 8), 1024
# Elements of the bias whose parts a program adds, and how many parts of elements at a time.
BIAS_ADDED, BIAS_ADDED_TILE = 64, 4096
