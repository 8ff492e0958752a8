"""What lies in `deploy/`: each setting that it has is one of the server's, and they go together.

No test here starts systemd or a cluster; `systemd-analyze` and `kubectl` read the files where they are at
hand.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
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


# -- systemd ----------------------------------------------------------------------------------------


class Unit(ConfigParser):
    """The unit; a key that stands several times has all its values, one a line."""

    def __init__(self) -> None:
        super().__init__(strict=False, interpolation=None, delimiters="=", comment_prefixes="#")
        text = (DEPLOY / "dibs.service").read_text("utf-8")
        self.read_string(text)
        self.loaded = dict(re.findall(r"^#?LoadCredential=([\w.]+):(\S+)$", text, re.MULTILINE))

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def unit() -> Unit:
    return Unit()


def test_the_file_beside_the_unit_is_one_that_the_server_takes(unit: Unit, tmp_path: Path) -> None:
    service = unit["Service"]
    config = read_config(str(DEPLOY / "server.toml"), {}, {})
    assert config.is_loopback, "as there is no key yet"
    assert config.leases == f"sqlite:////var/lib/{service['StateDirectory']}/leases.db"
    assert float(service["TimeoutStopSec"]) > takes(config)
    assert int(service["LimitNOFILE"]) >= config.limits.connections + 256
    text = (DEPLOY / "server.toml").read_text("utf-8")
    text = text.replace('listen = "127.0.0.1:5327"\n', "")
    file = tmp_path / "server.toml"
    file.write_text(re.sub(r"^# (\w+ = .*)$", r"\1", text, flags=re.MULTILINE), "utf-8")
    proposed = read_config(str(file), {}, {})
    assert not proposed.is_loopback
    for path in (proposed.tls_cert, proposed.tls_key):
        assert path.removeprefix("/run/credentials/dibs.service/") in unit.loaded


def test_what_the_unit_runs_and_how(unit: Unit) -> None:
    service = unit["Service"]
    program, verb, *options = service["ExecStart"].split()
    assert (Path(program).name, verb) == ("dibs", serve.name)
    assert options == ["--config", "${CREDENTIALS_DIRECTORY}/server.toml"]
    assert unit.loaded["server.toml"] == "/etc/dibs/server.toml"
    assert {"MemoryMax", "TasksMax"} <= service.keys()
    assert (service["DynamicUser"], service["NoNewPrivileges"]) == ("yes", "yes")
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"]) == ("strict", "")
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "64")


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "dibs.service").read_text("utf-8")
    file = tmp_path / "dibs.service"
    program = Path(sys.executable).with_name("dibs")
    file.write_text(text.replace("/opt/dibs/bin/dibs", str(program)), "utf-8")
    done = _run("systemd-analyze", "verify", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = _run("systemd-analyze", "security", "--offline=true", "--threshold=20", str(file))
    assert found.returncode == 0, found.stdout


# -- Kubernetes -------------------------------------------------------------------------------------


class Manifest:
    """What `kubernetes.yaml` has, by its kind."""

    def __init__(self) -> None:
        yaml: Any = import_module("yaml")
        text = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
        self.objects: list[Any] = list(yaml.safe_load_all(text))
        by_kind = {each["kind"]: each for each in self.objects}
        self.config_map = by_kind["ConfigMap"]
        self.deployment = by_kind["Deployment"]
        self.service = by_kind["Service"]
        self.budget = by_kind["PodDisruptionBudget"]
        self.pod: Any = self.deployment["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return Manifest()


@pytest.fixture(scope="module")
def served(manifest: Manifest, tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    """The settings that a server there would have."""
    file = tmp_path_factory.mktemp("config") / "server.toml"
    file.write_text(manifest.config_map["data"]["server.toml"], "utf-8")
    environ = {each["name"]: "postgresql://db/dibs" for each in manifest.container["env"]}
    assert all(name.startswith(VARIABLE) for name in environ)
    return read_config(str(file), {}, environ)


def test_the_servers_settings(manifest: Manifest, served: ServerConfig) -> None:
    assert manifest.container["args"] == [serve.name, "--config", "/etc/dibs/server.toml"]
    assert served.leases, "it comes from a secret"
    assert "leases" not in tomllib.loads(manifest.config_map["data"]["server.toml"])
    assert "sqlite" not in manifest.config_map["data"]["server.toml"]
    assert served.tls_cert, "keys do not go over the network in clear"


def test_every_file_that_is_named_is_mounted(manifest: Manifest, served: ServerConfig) -> None:
    volumes = {each["name"]: each for each in manifest.pod["volumes"]}
    mounts = {
        each["mountPath"]: volumes[each["name"]] for each in manifest.container["volumeMounts"]
    }
    of_config = mounts["/etc/dibs"]["configMap"]["name"]
    assert of_config == manifest.config_map["metadata"]["name"]
    for path, name in ((served.tls_cert, "tls.crt"), (served.tls_key, "tls.key")):
        folder, _, file = path.rpartition("/")
        assert (mounts[folder]["secret"]["secretName"], file) == ("dibs-tls", name)


def test_its_probes_and_its_end(manifest: Manifest, served: ServerConfig) -> None:
    """It stays until nobody sends anything any more, and then ends what runs."""
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = manifest.container[probe]
        wanted = "/readyz" if probe == "readinessProbe" else "/livez"
        assert asked["httpGet"] == {"path": wanted, "port": "https", "scheme": "HTTPS"}
        (route,) = (each for each in TABLE if each.path == wanted)
        assert (route.method, route.needs.kind) == ("GET", "public")
        assert asked["timeoutSeconds"] >= 3, "a look at the store may take two"
    assert manifest.pod["terminationGracePeriodSeconds"] > takes(served)
    readiness = manifest.container["readinessProbe"]
    assert served.drain_delay > readiness["periodSeconds"] * readiness["failureThreshold"]


def test_what_belongs_together(manifest: Manifest, served: ServerConfig) -> None:
    (port,) = manifest.container["ports"]
    assert port["containerPort"] == served.address[1]
    (outside,) = manifest.service["spec"]["ports"]
    assert outside["targetPort"] == port["name"]
    labels = manifest.deployment["spec"]["template"]["metadata"]["labels"]
    assert manifest.service["spec"]["selector"] == labels
    for spec in (manifest.deployment["spec"], manifest.budget["spec"]):
        assert spec["selector"]["matchLabels"] == labels


kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl here")


@pytest.mark.once
@kubectl
def test_kubectl_takes_it(manifest: Manifest) -> None:
    with Discovery() as discovery:
        done = _run(
            *("kubectl", "--server", discovery.url, "create", "--dry-run=client"),
            *("--validate=false", "-f", str(DEPLOY / "kubernetes.yaml"), "-o", "name"),
        )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(manifest.objects)


def lacking(wanted: Any, container: str, file: Path) -> list[str]:
    """The fields that kubectl drops, as there are none of that name, and the image."""
    file.write_text(json.dumps(wanted), "utf-8")
    image = f"{container}=new"
    done = _run("kubectl", "set", "image", "--local", "-f", str(file), image, "-o", "json")
    assert done.returncode == 0, done.stderr
    return _lacks(json.loads(done.stdout), wanted)


@pytest.mark.once
@kubectl
def test_kubectl_knows_every_field_of_the_deployment(manifest: Manifest, tmp_path: Path) -> None:
    lacks = lacking(manifest.deployment, "dibs", tmp_path / "deployment.json")
    assert lacks == ["/spec/template/spec/containers/0/image"]


@pytest.mark.once
@kubectl
def test_the_cron_job_runs_as_the_account_that_has_the_rights(tmp_path: Path) -> None:
    yaml: Any = import_module("yaml")
    job = yaml.safe_load((DEPLOY / "kubernetes-cronjob.yaml").read_text("utf-8"))
    rights = yaml.safe_load_all((DEPLOY / "kubernetes-rbac.yaml").read_text("utf-8"))
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    accounts = [each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount"]
    assert accounts == [pod["serviceAccountName"]]
    assert ",kubernetes]" in (DEPLOY / "Dockerfile").read_text("utf-8")
    at = "/spec/jobTemplate/spec/template/spec/containers/0/image"
    assert lacking(job, "nightly", tmp_path / "job.json") == [at]
    (container,) = pod["containers"]
    env = {**os.environ, "DIBS_URL": f"sqlite:///{tmp_path}/leases.db"}
    words = [sys.executable, "-m", "dibs", *container["args"][:-1], "0"]
    assert subprocess.run(words, env=env, check=False).returncode == 0


def _lacks(found: Any, wanted: Any, path: str = "") -> list[str]:
    """Where something differs from what is wanted, or is not there."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            lack
            for key, value in wanted.items()
            for lack in _lacks(found.get(key), value, f"{path}/{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [
            lack
            for at, (one, other) in enumerate(zip(found, wanted, strict=True))
            for lack in _lacks(one, other, f"{path}/{at}")
        ]
    return [] if found == wanted else [path]


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"KUBECONFIG": os.devnull},
    )
