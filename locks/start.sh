#!/bin/sh
# Run locks/install.py, with the arguments given here, by a Python that works.
#
# The first python3 of the PATH may be a shim of pyenv or asdf without a Python behind it, may be too old, or may lack
# the module venv. PYTHON=… names one; then no other is taken. -I: a person's PYTHONHOME, PYTHONPATH and ~/.local are
# another Python's business.
set -u
install=$(dirname "$0")/install.py

complete='import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'
runs='import sys; sys.exit(sys.version_info < (3, 6))'

# Print each Python of the PATH, and where else one often is: a line each, the best first.
every_python() {
    (
        set -f
        IFS=:
        for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
            for folder in $PATH:/usr/local/bin:/usr/bin:/opt/homebrew/bin; do
                [ -f "$folder/$name" ] && [ -x "$folder/$name" ] && printf '%s\n' "$folder/$name"
            done
        done
    )
    for python in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.*/bin/python3; do
        [ -x "$python" ] && printf '%s\n' "$python"
    done
}

# Print the first Python for which this code exits with 0.
first_that() {
    every_python | while IFS= read -r python; do
        if "$python" -I -c "$1" </dev/null >/dev/null 2>&1; then
            printf '%s\n' "$python"
            break
        fi
    done
}

# The first line of what a Python that does not run says.
first_words() {
    "$1" -I -c '' </dev/null 2>&1 | head -n 1
}

if [ -n "${PYTHON:-}" ]; then
    if ! command -v "$PYTHON" >/dev/null 2>&1; then
        printf '✗ There is no program PYTHON=%s.\n→ Name a Python 3.11 or newer, or none: make workshop\n' "$PYTHON" >&2
        exit 1
    fi
    if ! "$PYTHON" -I -c '' </dev/null >/dev/null 2>&1; then
        printf '✗ PYTHON=%s does not run: %s\n' "$PYTHON" "$(first_words "$PYTHON")" >&2
        printf '→ Name a Python 3.11 or newer by its path, or none: make workshop\n' >&2
        exit 1
    fi
    exec "$PYTHON" -I "$install" "$@"
fi

python=$(first_that "$complete")
[ -n "$python" ] || python=$(first_that "$runs")
if [ -n "$python" ]; then
    exec "$python" -I "$install" "$@"
fi

if found=$(command -v python3); then
    printf '✗ No Python runs here. %s says: %s\n' "$found" "$(first_words "$found")" >&2
else
    printf '✗ There is no Python here.\n' >&2
fi
printf '→ Install Python 3.11 or newer (apt install python3 python3-venv; pyenv install 3.12 && pyenv global 3.12;\n' >&2
printf '  conda create -n py python=3.12; module load python), or name one: make workshop PYTHON=/path/to/python3\n' >&2
exit 1
