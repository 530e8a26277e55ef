"""The constants of conv-backward that `python -m bench.kernels tune` times again."""

from __future__ import annotations

from warpcall_kernels._conv.fma_work import SKEWED, WHOLE, Work
from warpcall_kernels.op.declaration import TunedConstants

TUNING = (
    TunedConstants(
        "_conv.fma_work",
        ("MANY_TILES",),
        [
            (Work(7, 128, 256, 2, limited=False),),
            (Work(7, 96, 128, 2),),
            (Work(7, 128),),
        ],
        ("[8,1024,2048] H16 K7 padK-1 bf16", "[4,1024,8192] H16 K3 padK-1 bf16"),
    ),
    TunedConstants(
        "_conv.fma_work",
        ("WHOLE[2]",),
        [
            (WHOLE[2],),
            *(((Work(16, *rest),),) for rest in ((96, 128, 2), (80, 128, 2), (128, 256, 2))),
        ],
        ("[64,512,32] H8 K7 padK-1 bf16", "[64,512,32] H8 K3 padK-1 bf16"),
    ),
    TunedConstants(
        "_conv.fma_work",
        ("WHOLE[4]",),
        [
            (WHOLE[4],),
            *(
                ((Work(32, *rest),),)
                for rest in ((96, 128, 2), (128, 128, 2), (80,), (128, 128, 4, 2))
            ),
        ],
        (
            "[8,1024,2048] H16 K7 padK-1 fp32",
            "[8,1024,2048] H16 K16",
            "[32,512,512] H8 K31 padK-1 fp32",
        ),
    ),
    TunedConstants(
        "_conv.fma_work",
        ("SKEWED[2]",),
        [
            (SKEWED[2],),
            ((Work(12, 168, 256, 2),),),
            ((Work(12, 128),),),
        ],
        ("[8,510,4093] H17 K9", "[16,256,4099] H16 K2"),
    ),
    TunedConstants(
        "_conv.backward",
        ("BLOCK_SUPER", "BLOCK_STAGES", "BLOCK_PROGRAMS"),
        [(1, 3, 2), (1, 2, 2), (2, 2, 2), (1, 1, 3)],
        ("[8,1024,2048] H16 K31 padK-1 bf16", "[32,512,512] H8 K31 padK-1 bf16"),
    ),
    TunedConstants(
        "_conv.backward",
        ("FMA_MAX_TAPS_ALIGNED", "FMA_MAX_TAPS_CENTRED"),
        [(7, 6), (16, 16), (7, 7)],
        ("[8,1024,2048] H16 K15", "[32,512,512] H8 K15", "[8,1024,2048] H16 K7 padK//2"),
    ),
)
