"""The command line itself: help, streams, exit statuses."""

import json
import os
import platform
import subprocess
import sys

import pytest
import torch

from metavib import __version__
from metavib.core.json_record import checksum
from metavib.interfaces.cli.commands import COMMANDS
from metavib.interfaces.cli.main import main


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from metavib.interfaces.cli.commands import COMMANDS\n"
        "from metavib.interfaces.cli.main import main\n"
        "for words in ([], *([name] for name in COMMANDS)):\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'rich', 'PIL', 'ruamel', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: metavib {command}" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown(metavib):
    status, out, _ = metavib()
    assert status == 0
    assert "metavib demo" in out


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"metavib {__version__}"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert second.startswith(f"Python {platform.python_version()}, torch {torch.__version__}, ")
    assert f"device {device}" in second


def test_without_torch_the_version_says_so(program):
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = None\n"
        "sys.argv = ['metavib', '--version']\n"
        "runpy.run_module('metavib', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"metavib {__version__}"
    assert "torch cannot be imported" in done.stdout


def test_abbreviated_flags_are_not_guessed(refused, training):
    assert "--targ" in refused(*training("--targ", "photo"))


def test_json_is_all_there_is_on_stdout(metavib, training, finished):
    image = finished.folder / "photo" / "cat" / "0.png"
    for command in (
        training(),
        finished.command,
        ["data", finished.folder],
        ["evaluate", finished.run],
        ["predict", finished.run, image],
        ["describe", "metavib"],
    ):
        _, out, _ = metavib(*command, "--json")
        assert out.endswith("\n")
        assert isinstance(json.loads(out), dict)


def test_with_json_the_results_for_people_are_on_stderr(metavib, finished):
    for command in (["data", finished.folder], ["evaluate", finished.run], ["describe", "erm"]):
        _, for_people, progress = metavib(*command)
        _, _, err = metavib(*command, "--json")
        assert for_people
        assert err == progress + for_people


def test_what_files_say_reaches_no_terminal_as_it_is(metavib, finished_copy):
    path = finished_copy.run / "model" / "config.json"
    record = json.loads(path.read_text())
    record["classes"] = ["\x1b[2Jcat", "=dog()"]
    record.pop("check")
    path.write_text(json.dumps(record | {"check": checksum(record)}))
    image = finished_copy.folder / "photo" / "cat" / "0.png"
    for command in (
        ["describe", finished_copy.run / "model"],
        ["predict", finished_copy.run, image, "--top", "2"],
        ["predict", finished_copy.run, image, "--csv"],
        ["predict", finished_copy.run, image, "--json"],
        ["describe", "\x1b[2J"],
    ):
        _, out, err = metavib(*command)
        assert "1b[2J" in out + err
        assert "\x1b" not in out + err
        (out + err).encode()


def test_a_fault_of_ours_is_a_traceback_and_status_1(metavib, monkeypatch):
    def broken(arguments):
        raise ZeroDivisionError("deliberate")

    monkeypatch.setattr("metavib.interfaces.cli.commands.describe.run", broken)
    status, out, err = metavib("describe")
    assert (status, out) == (1, "")
    assert "Traceback" in err
    assert "ZeroDivisionError: deliberate" in err
    assert "fault of metavib" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory"),
        (PermissionError(13, "Permission denied", "/some/place"), "/some/place: Permission denied"),
    ],
)
def test_what_the_machine_refuses_is_one_line(refused, monkeypatch, error, said):
    def broken(arguments):
        raise error

    monkeypatch.setattr("metavib.interfaces.cli.commands.describe.run", broken)
    assert said in refused("describe")


def test_ctrl_c_outside_training_is_one_line_and_status_130(metavib, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("metavib.interfaces.cli.commands.describe.run", interrupted)
    assert metavib("describe") == (130, "", "metavib: stopped.\n")


@pytest.mark.parametrize(
    "arguments", [["--help"], pytest.param(["describe", "--json"], marks=pytest.mark.processes)]
)
def test_a_reader_that_has_gone_is_no_error(program, arguments):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*program, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=buffered
    )
    os.close(writer)
    assert done.returncode == 0
    assert "Error" not in done.stderr
    assert "Exception" not in done.stderr
