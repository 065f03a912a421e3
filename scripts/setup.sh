# Sourced by demo.sh and test.sh: makes .venv in the checkout and leaves its interpreter in $PYTHON.
# Needs Python >= 3.11 and nothing else. Does nothing when the venv already fits pyproject.toml.

EXTRAS="export,cpu,genai,video,evaluate,dev"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in python3 python3.11 python3.12 python3.13 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "error: no Python 3.11 or newer on PATH. Install one and run this script again."
    return 2
}

venv_python() {
    if [ -x "$ROOT/.venv/Scripts/python.exe" ]; then # Git Bash on Windows
        printf '%s\n' "$ROOT/.venv/Scripts/python.exe"
    else
        printf '%s\n' "$ROOT/.venv/bin/python"
    fi
}

# What the venv must fit: the dependency list, the extras, and the place of the checkout (a moved venv is broken).
fingerprint() {
    "$1" - "$ROOT/pyproject.toml" "$EXTRAS" "$ROOT" <<'PY'
import hashlib, pathlib, sys
file, *rest = sys.argv[1:]
print(hashlib.sha256(pathlib.Path(file).read_bytes() + "\0".join(rest).encode()).hexdigest())
PY
}

set_up() {
    local base stamp wanted
    base="$(find_python)" || return
    stamp="$ROOT/.venv/qwen_export.stamp"
    wanted="$(fingerprint "$base")" || return
    PYTHON="$(venv_python)"
    if [ -x "$PYTHON" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$PYTHON" -c '' 2>/dev/null; then
        return
    fi
    say "Setting up .venv ($EXTRAS); this takes about a minute after downloads."
    if ! [ -x "$PYTHON" ] || ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
        "$base" -m venv --clear "$ROOT/.venv" || {
            say "error: $base cannot make a virtual environment. On Debian or Ubuntu install python3-venv."
            return 2
        }
        PYTHON="$(venv_python)"
    fi
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -e "$ROOT[$EXTRAS]" || {
        say "error: the dependencies could not be installed; pip's message is above."
        return 2
    }
    printf '%s\n' "$wanted" >"$stamp"
}

set_up || exit $?
