"""Changes the launch plans that a recorder answers with."""

from warpcall_kernels.verified.plan import Plan

as_recorded = Plan.to_json


def forge(change):
    def to_json(plan):
        found = as_recorded(plan)
        return change(found) or found

    Plan.to_json = to_json
