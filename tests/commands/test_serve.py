"""The command `serve`: it starts, stops, and loads its models again."""

import copy
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch

from modeling_random_transformer.commands.serve import read_keys
from modeling_random_transformer.extras.serving import serve
from tests.helpers.serving import ask, wait_until


def test_keys_are_the_lines_of_a_file(tmp_path):
    (tmp_path / "keys").write_text("\ufeffone\n\n my secret key \r\n")
    assert read_keys(tmp_path / "keys") == ["one", "my secret key"]
    (tmp_path / "keys").write_text(" \n")
    with pytest.raises(ValueError, match="--api_keys must be a file with at least one key"):
        read_keys(tmp_path / "keys")


def test_a_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"host and port must be available, got 127.0.0.1 and {port}: .* in use"):
            serve(None, "127.0.0.1", port)


@pytest.mark.slow
def test_the_command_loads_the_models_again_until_it_is_terminated(translator, translator_folder, tmp_path):
    """A model that is replaced by another one is used; one that cannot be loaded is not."""
    folder = tmp_path / "model"
    shutil.copytree(translator_folder, folder)
    command = [sys.executable, "-m", "modeling_random_transformer", "serve", "--port", "0", "--access_log"]
    command += ["--model", f"en:es={folder}"]
    with ExitStack() as stack:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
        stack.callback(process.kill)  # also after an error, or the end of the block would wait
        port = int(process.stdout.readline().rpartition(":")[2])
        status, before, _ = ask(port, "the boy")
        assert status == 200
        changed = copy.deepcopy(translator)
        with torch.no_grad():
            changed.lm_head.weight.neg_()
        changed.save_pretrained(folder)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: ask(port, "the boy")[1] != before)
        after = ask(port, "the boy")[1]
        (folder / "config.json").unlink()
        process.send_signal(signal.SIGHUP)
        for line in process.stderr:
            assert "the boy" not in line
            if "The models were not loaded again: " in line:
                break
        assert "config.json" in line
        assert ask(port, "the boy")[1] == after
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
