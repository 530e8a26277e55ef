#!/usr/bin/env bash
# Measure $FILE as it is at $BASE and as it is now. Writes check.md, and the outcome for later steps.
set -euo pipefail
path=${FILE%%:*}
function=${FILE#"$path"}
mkdir -p "$RUNNER_TEMP/base"
# An earlier step of the same job may have left its result, which would pass for that of this check.
rm -f "$RUNNER_TEMP/check.md"
old="$RUNNER_TEMP/base/$(basename "$path")"
if ! git show "$BASE:$path" >"$old"; then
    echo "$path is not in $BASE, so there is nothing to compare with." | tee "$RUNNER_TEMP/check.md"
    echo "outcome=passed" >>"$GITHUB_OUTPUT"
    exit 0
fi
read -ra cases <<<"${CASES//$'\n'/ }"
status=0
PYTHONPATH="$RUNNER_TEMP/warpcall${PYTHONPATH:+:$PYTHONPATH}" python3 -m warpcall regression "$OP" \
    --base "$old$function" --head "$FILE" "${cases[@]}" --markdown "$RUNNER_TEMP/check.md" || status=$?
if [ ! -s "$RUNNER_TEMP/check.md" ]; then
    exit "$status" # nothing was measured, and the command has said why
fi
outcome=$(sed -n '1s/.* //p' "$RUNNER_TEMP/check.md")
echo "outcome=$outcome" >>"$GITHUB_OUTPUT"
cat "$RUNNER_TEMP/check.md" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
