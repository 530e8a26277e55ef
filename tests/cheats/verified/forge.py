"""Changes the launch plan that a recorder answers with next."""

from warpcall_kernels.verified.plan import Plan

as_recorded = Plan.to_json


def forge(change):
    def to_json(plan):
        Plan.to_json = as_recorded
        found = as_recorded(plan)
        return change(found) or found

    Plan.to_json = to_json
