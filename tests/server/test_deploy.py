"""What lies in `deploy/`: each setting that it has is one of the server's, and they go together.

No test here starts systemd or a cluster; `systemd-analyze` and `kubectl` read the files where they are at
hand.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dibs.cli.serve import serve
from dibs.server.app import TABLE
from dibs.server.config import VARIABLE, ServerConfig, read_config
from tests.servers.discovery import Discovery

DEPLOY = Path(__file__).parents[2] / "deploy"
SPARE = 5.0
"""Seconds that a server may take to end, besides those in which requests do."""


def takes(config: ServerConfig) -> float:
    """How long a server of these settings takes to end."""
    return config.drain_delay + config.drain_time + SPARE


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"KUBECONFIG": os.devnull}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


# -- systemd ----------------------------------------------------------------------------------------


def test_the_unit_and_the_file_beside_it_go_together(tmp_path: Path) -> None:
    text = (DEPLOY / "dibs.service").read_text("utf-8")
    unit = ConfigParser(strict=False, interpolation=None, delimiters="=", comment_prefixes="#")
    unit.read_string(text)
    service = unit["Service"]
    loaded = dict(re.findall(r"^#?LoadCredential=([\w.]+):(\S+)$", text, re.MULTILINE))
    program, verb, *options = service["ExecStart"].split()
    assert (Path(program).name, verb) == ("dibs", serve.name)
    assert options == ["--config", "${CREDENTIALS_DIRECTORY}/server.toml"]
    assert loaded["server.toml"] == "/etc/dibs/server.toml"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "64")

    config = read_config(str(DEPLOY / "server.toml"), {}, {})
    assert config.is_loopback, "as there is no key yet"
    assert config.leases == f"sqlite:////var/lib/{service['StateDirectory']}/leases.db"
    assert float(service["TimeoutStopSec"]) > takes(config)
    assert int(service["LimitNOFILE"]) >= config.limits.connections + 256

    settings = (DEPLOY / "server.toml").read_text("utf-8")
    settings = settings.replace('listen = "127.0.0.1:5327"\n', "")
    file = tmp_path / "server.toml"
    file.write_text(re.sub(r"^# (\w+ = .*)$", r"\1", settings, flags=re.MULTILINE), "utf-8")
    proposed = read_config(str(file), {}, {})
    assert not proposed.is_loopback
    for path in (proposed.tls_cert, proposed.tls_key):
        assert path.removeprefix("/run/credentials/dibs.service/") in loaded


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "dibs.service").read_text("utf-8")
    file = tmp_path / "dibs.service"
    program = Path(sys.executable).with_name("dibs")
    file.write_text(text.replace("/opt/dibs/bin/dibs", str(program)), "utf-8")
    done = run("systemd-analyze", "verify", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = run("systemd-analyze", "security", "--offline=true", "--threshold=20", str(file))
    assert found.returncode == 0, found.stdout


# -- Kubernetes -------------------------------------------------------------------------------------


def objects(file: str) -> list[Any]:
    yaml: Any = import_module("yaml")
    return list(yaml.safe_load_all((DEPLOY / file).read_text("utf-8")))


def test_the_manifest_and_the_servers_settings_go_together(tmp_path: Path) -> None:
    found = {each["kind"]: each for each in objects("kubernetes.yaml")}
    settings, deployment, service = found["ConfigMap"], found["Deployment"], found["Service"]
    template = deployment["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    file = tmp_path / "server.toml"
    file.write_text(settings["data"]["server.toml"], "utf-8")
    environ = {each["name"]: "postgresql://db/dibs" for each in container["env"]}
    assert all(name.startswith(VARIABLE) for name in environ)
    config = read_config(str(file), {}, environ)
    assert container["args"] == [serve.name, "--config", "/etc/dibs/server.toml"]
    assert not read_config(str(file), {}, {}).leases, "they come from a secret"

    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    assert mounts["/etc/dibs"]["configMap"]["name"] == settings["metadata"]["name"]
    for path, name in ((config.tls_cert, "tls.crt"), (config.tls_key, "tls.key")):
        folder, _, tls_file = path.rpartition("/")
        assert (mounts[folder]["secret"]["secretName"], tls_file) == ("dibs-tls", name)

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        wanted = "/readyz" if probe == "readinessProbe" else "/livez"
        asked = container[probe]
        assert asked["httpGet"] == {"path": wanted, "port": "https", "scheme": "HTTPS"}
        (route,) = (each for each in TABLE if each.path == wanted)
        assert (route.method, route.needs.kind) == ("GET", "public")
        assert asked["timeoutSeconds"] >= 3, "a look at the store may take two"
    assert pod["terminationGracePeriodSeconds"] > takes(config)
    readiness = container["readinessProbe"]
    assert config.drain_delay > readiness["periodSeconds"] * readiness["failureThreshold"]

    (port,) = container["ports"]
    (outside,) = service["spec"]["ports"]
    assert (port["containerPort"], outside["targetPort"]) == (config.address[1], port["name"])
    labels = template["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    for each in (deployment, found["PodDisruptionBudget"]):
        assert each["spec"]["selector"]["matchLabels"] == labels


kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here")


@pytest.mark.once
@kubectl
def test_kubectl_takes_the_manifest() -> None:
    with Discovery() as discovery:
        done = run(
            *("kubectl", "--server", discovery.url, "create", "--dry-run=client"),
            *("--validate=false", "-f", str(DEPLOY / "kubernetes.yaml"), "-o", "name"),
        )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects("kubernetes.yaml"))


@pytest.mark.once
@kubectl
def test_the_first_key_in_a_cluster_on_the_page() -> None:
    text = (DEPLOY.parent / "docs" / "serve.md").read_text("utf-8")
    (command,) = re.findall(r"^kubectl (run (?:.|\n)*?\}\]\}\}')$", text, re.MULTILINE)
    words = [each for each in shlex.split(command) if each not in ("--rm", "-i")]
    with Discovery() as discovery:
        options = ("--dry-run=client", "-o", "json")
        done = run("kubectl", "--server", discovery.url, *words, *options)
    (container,) = json.loads(done.stdout)["spec"]["containers"]
    assert container["args"][:2] == ["keys", "create"]
    (variable,) = container["env"]
    assert variable["name"] == f"{VARIABLE}LEASES"
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "dibs", "key": "store"}


@pytest.mark.once
def test_the_cron_job_runs_as_the_account_that_has_the_rights(tmp_path: Path) -> None:
    (job,), rights = objects("kubernetes-cronjob.yaml"), objects("kubernetes-rbac.yaml")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    accounts = [each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount"]
    assert accounts == [pod["serviceAccountName"]]
    (container,) = pod["containers"]
    env = {**os.environ, "DIBS_URL": f"sqlite:///{tmp_path}/leases.db"}
    words = [sys.executable, "-m", "dibs", *container["args"][:-1], "0"]
    assert subprocess.run(words, env=env, check=False).returncode == 0
