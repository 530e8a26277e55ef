"""What the jobs API accepts, as models.

The types of the answers are those of the SDK, in `warpcall.jobs` and `warpcall.jobs.results`.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from warpcall.jobs import Precision, Priority
from warpcall_service.http.openapi_parts import Model, Text

MAX_DIMS = 64
MAX_BODY_BYTES = 64 << 10  # 1,000 cases with a shape, a dtype and a parameter take 60 KB
MAX_ENTRIES = 64  # entries of a parameter that is a list
MAX_VALUES = 4096  # entries of one list of a sweep; its product may have some 1,000 cases

MAX_SEQUENCE = 2**31 - 1  # the database stores the sequence of an event in 4 bytes


Size = Annotated[int, Field(ge=0, lt=1 << 63)]
# Without `fail_fast`, a list of thousands of wrong entries would make as many errors.
Shape = Annotated[list[Size], Field(max_length=MAX_DIMS, fail_fast=True)]
Name = Annotated[Text, StringConstraints(min_length=1, max_length=64)]
ImplementationName = Annotated[Text, StringConstraints(min_length=1, max_length=160)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,63}$")]
Entries = Annotated[list[int], Field(max_length=MAX_ENTRIES, fail_fast=True)]
ParamValue = bool | int | float | Entries | None
SizeValue = Size | Name
CaseKey = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]


class _Model(Model):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TensorSpec(_Model):
    """An input whose values the server draws.

    `dtype` is a name such as BF16. `values`, `low` and `high` say which values are drawn, "normal"
    by default. `layout` is the memory layout, "contiguous" by default.
    """

    shape: Shape
    dtype: Name
    values: Name | None = None
    low: int | None = None
    high: int | None = None
    layout: Name | None = None


class CaseSpec(_Model):
    """One case: all inputs, or the shape and dtype of the first, from which the op derives the
    rest.

    `sizes` gives the sizes that the shape leaves open, such as the taps of a convolution.
    """

    inputs: dict[Name, TensorSpec] | None = Field(None, max_length=16)
    shape: Shape | None = None
    dtype: Name | None = None
    params: dict[Name, ParamValue] = Field(default_factory=dict, max_length=16)
    sizes: dict[Name, SizeValue] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.inputs is None) == (self.shape is None):
            raise ValueError("give either inputs or shape")
        if self.inputs is not None and (self.dtype is not None or self.sizes):
            raise ValueError("inputs have their own dtypes and sizes")
        if self.shape is not None and self.dtype is None:
            raise ValueError("a shape needs a dtype")
        return self


class Sweep(_Model):
    """A product of cases: each shape with each dtype, each value of each parameter and each size."""

    shapes: Annotated[list[Shape], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    dtypes: Annotated[list[Name], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    params: dict[
        Name,
        Annotated[list[ParamValue], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)],
    ] = Field(default_factory=dict, max_length=16)
    sizes: dict[
        Name, Annotated[list[SizeValue], Field(min_length=1, max_length=MAX_VALUES, fail_fast=True)]
    ] = Field(default_factory=dict, max_length=16)


class JobChange(_Model):
    """What can be changed of a job after its submission."""

    private: bool


class JobRequest(_Model):
    """A benchmark of some implementations of an op on some cases.

    The other implementations are compared with the first one. If a job of the same user measured
    the same in the same environment, that job is the answer, unless `fresh` is true. Only its user
    and administrators can read a job with `private`. By default a job is private if it times a
    private upload, or if the server is set so.
    """

    op: Name
    implementations: Annotated[
        list[ImplementationName], Field(min_length=1, max_length=8, fail_fast=True)
    ] = Field(default_factory=lambda: ["warpcall", "torch"])
    cases: Annotated[list[CaseSpec], Field(min_length=1, fail_fast=True)] | None = None
    sweep: Sweep | None = None
    precision: Precision = "standard"
    priority: Priority = "normal"
    tags: Annotated[list[Word], Field(max_length=16, fail_fast=True)] = Field(default_factory=list)
    note: Annotated[Text, StringConstraints(max_length=1000)] = ""
    fresh: bool = False
    private: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.cases is None) == (self.sweep is None):
            raise ValueError("give either cases or sweep")
        for name, given in (("implementations", self.implementations), ("tags", self.tags)):
            if len(set(given)) < len(given):
                raise ValueError(f"{name} must name each once")
        return self
