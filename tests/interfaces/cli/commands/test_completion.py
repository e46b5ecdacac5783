"""Completion: the script of each shell, and bash asked to complete with it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from metavib.interfaces.cli.commands import COMMANDS

pytest.importorskip("shtab")


def completed(script, *words):
    """What bash offers for the last of these words."""
    line = " ".join(word or "''" for word in words)
    asked = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_metavib; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command(metavib, shell):
    status, out, err = metavib("completion", shell)
    assert (status, err) == (0, "")
    assert all(command in out for command in COMMANDS)
    assert "terra-incognita" in out
    assert "feature_critic" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_flags_and_names(metavib, tmp_path):
    script = tmp_path / "metavib.bash"
    script.write_text(metavib("completion", "bash").out)
    assert {"train", "fetch"} <= set(completed(script, "metavib", ""))
    assert completed(script, "metavib", "repo") == ["report"]
    assert completed(script, "metavib", "train", "--algo") == ["--algorithm"]
    assert completed(script, "metavib", "train", "x", "--algorithm", "metav") == ["metavib"]
    assert completed(script, "metavib", "fetch", "off") == ["office-home"]
    assert {"tensorboard", "mlflow", "wandb"} <= set(completed(script, "metavib", "train", "x", "--log", ""))


def test_an_unknown_shell_is_refused(metavib):
    status, out, err = metavib("completion", "fsh")
    assert (status, out) == (2, "")
    assert err == "metavib: unknown shell 'fsh'; did you mean 'fish'? Known: bash, fish, zsh\n"


def test_without_the_library_the_line_names_the_extra(metavib, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    status, out, err = metavib("completion", "bash")
    assert (status, out) == (2, "")
    assert err == "metavib: metavib completion needs shtab; run: pip install 'metavib[completion]'\n"
