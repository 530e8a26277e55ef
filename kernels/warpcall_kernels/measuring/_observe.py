"""What disturbs a measurement."""

from __future__ import annotations

import torch


class Observer:
    """Looks at a device between timed blocks; this one sees nothing."""

    def look(self) -> str | None:
        """What has disturbed the device since the last look, or None."""
        return None

    def tags(self) -> tuple[str, ...]:
        """What held for the whole measurement, such as "power capped"."""
        return ()

    def energy_mj(self) -> float | None:
        """What the device has used so far."""
        return None


def observer(device: torch.device) -> Observer:
    """The observer of a device."""
    return Observer()
