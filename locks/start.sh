#!/bin/sh
# Run locks/install.py, with the arguments given here, by a Python that works: 3.11 or newer, with the module venv.
#
# The first python3 of the PATH may be a shim of pyenv or asdf without a Python behind it, may be too old, or may lack
# that module. PYTHON=… names one; then no other is taken. -I: a person's PYTHONHOME, PYTHONPATH and ~/.local are
# another Python's business.
set -uf
install=$(dirname "$0")/install.py
works='
import sys
if sys.version_info < (3, 11): sys.exit("this is Python %d.%d" % sys.version_info[:2])
try: import ensurepip, venv
except ImportError as error: sys.exit(str(error))
'
problem=

# Go on with this Python if it works; else remember what the first that does not says.
try() {
    if says=$("$1" -I -c "$works" </dev/null 2>&1); then
        python=$1
        shift
        exec "$python" -I "$install" "$@"
    fi
    problem=${problem:-$1 says: $says}
}

if [ -n "${PYTHON:-}" ]; then
    try "$PYTHON" "$@"
else
    IFS=:
    for folder in $PATH:/usr/local/bin:/usr/bin:/opt/homebrew/bin; do
        for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
            [ -x "$folder/$name" ] && try "$folder/$name" "$@"
        done
    done
    unset IFS
    set +f
    for python in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.*/bin/python3; do
        [ -x "$python" ] && try "$python" "$@"
    done
fi

{
    printf '✗ %s\n' "${problem:-There is no Python here.}" | head -n 1
    printf '→ Install Python 3.11 or newer (apt install python3 python3-venv; pyenv install 3.12 && pyenv global 3.12;\n'
    printf '  conda create -n py python=3.12; module load python), or name one: make workshop PYTHON=/path/to/python3\n'
} >&2
exit 1
