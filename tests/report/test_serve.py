import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread

import pytest
from fake_runs import write_training_run

from eigenbatch.report.serve import server


@contextmanager
def serving(folder, *, interval=5.0):
    with server([folder], port=0, interval=interval) as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield running.server_port
        finally:
            running.shutdown()
            thread.join()


def get(port, path="/", host=None):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


def test_version_changes_with_the_files_and_the_page_follows(tmp_path):
    folder = write_training_run(tmp_path / "run", finished=False)
    with serving(tmp_path) as port:
        _, version = get(port, "/version")
        _, page = get(port)
        assert f'data-version="{version}"' in page
        assert get(port, "/version")[1] == version
        write_training_run(tmp_path / "another", seed=1)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9999, "epoch": 77, "seconds": 1, "loss": 1}\n')
        _, newer = get(port, "/version")
        assert newer != version
        _, page = get(port)
        assert f'data-version="{newer}"' in page
        assert ">77<" in page


def test_a_folder_that_is_still_empty_is_served_until_runs_appear(tmp_path):
    with serving(tmp_path) as port:
        assert "No runs yet" in get(port)[1]
        write_training_run(tmp_path / "run")
        assert "1 run" in get(port)[1]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1"])
def test_a_foreign_host_name_is_refused(tmp_path, host):
    write_training_run(tmp_path / "run")
    with serving(tmp_path) as port:
        assert get(port, host=host)[0] == 403
        assert get(port, "/version", host=host)[0] == 403
        assert get(port, "/version", host=f"localhost:{port}")[0] == 200


def test_files_beside_the_page_are_not_served(tmp_path):
    write_training_run(tmp_path / "run")
    with serving(tmp_path) as port:
        for path in ("/run/manifest.json", "/../etc/passwd", "/index.html", "/?x"):
            assert get(port, path)[0] == 404


def test_paths_may_appear_and_vanish_while_serving(tmp_path):
    with serving(tmp_path / "later") as port:
        assert "No runs yet" in get(port)[1]
        write_training_run(tmp_path / "later" / "run")
        assert "1 run" in get(port)[1]
        shutil.rmtree(tmp_path / "later")
        assert get(port, "/version")[0] == 200
        assert "No runs yet" in get(port)[1]


def test_ctrl_c_ends_it_cleanly(tmp_path):
    write_training_run(tmp_path / "run")
    program = (
        "import signal, sys; from pathlib import Path; from eigenbatch.report.serve import serve; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # jobs of a shell ignore it
        "serve([Path(sys.argv[1])], ready=lambda address: print(address, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (0, "")
