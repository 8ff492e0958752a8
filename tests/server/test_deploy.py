"""What lies in `deploy/`: each setting that it has is one of the server's, and they go together.

No test here starts systemd, a container or a cluster. `systemd-analyze`, kustomize and the API server's own
validation read the files.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from dibs.cli.keys import create
from dibs.cli.serve import serve
from dibs.server.app import TABLE
from dibs.server.config import VARIABLE, ServerConfig, read_config
from dibs.version import VERSION
from tests.pages import write_files
from tests.server.world import World
from tests.servers.binaries import kube_program, systemd_program
from tests.servers.certificates import key_of, self_signed
from tests.servers.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"


def takes(config: ServerConfig) -> float:
    """Seconds that a server of these settings takes to end, of which 5 are for itself."""
    return config.drain_delay + config.drain_time + 5.0


def manifest(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def read(
    folder: Path, text: str, environ: Mapping[str, str] = MappingProxyType({})
) -> ServerConfig:
    """The settings in a file of this text."""
    file = folder / "server.toml"
    file.write_text(text, "utf-8")
    return read_config(str(file), {}, environ)


def run(*command: str | Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_unit_and_the_file_beside_it_go_together(tmp_path: Path) -> None:
    text = manifest("dibs.service")
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

    settings = manifest("server.toml").replace('listen = "127.0.0.1:5327"\n', "")
    proposed = read(tmp_path, re.sub(r"^# (\w+ = .*)$", r"\1", settings, flags=re.MULTILINE))
    assert not proposed.is_loopback
    for path in (proposed.tls_cert, proposed.tls_key):
        assert path.removeprefix("/run/credentials/dibs.service/") in loaded


@pytest.mark.once
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = systemd_program().path
    file = tmp_path / "dibs.service"
    program = Path(sys.executable).with_name("dibs")
    text = manifest(file.name).replace("/opt/dibs/bin/dibs", str(program))
    file.write_text(text, "utf-8")
    done = run(analyze, "verify", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = run(analyze, "security", "--offline=true", "--threshold=20", file)
    assert found.returncode == 0, found.stdout


def test_the_image_has_what_it_copies() -> None:
    text = manifest("Dockerfile")
    copied = " ".join(re.findall(r"^COPY ((?!--).*) ", text, re.MULTILINE)).split()
    let_in = re.findall(r"^!(.*)$", manifest("Dockerfile.dockerignore"), re.MULTILINE)
    assert "src" in copied
    assert set(copied) == set(let_in)
    assert [path for path in copied if not (DEPLOY.parent / path).exists()] == []
    (check,) = re.findall(r"--health-cmd='python (\S+)'", manifest("../docs/deploy.md"))
    assert f"COPY deploy/healthcheck.py {check}\n" in text


def test_the_tag_of_the_image_is_the_version() -> None:
    files = [*DEPLOY.rglob("*"), DEPLOY.parent / "docs/deploy.md"]
    texts = [path.read_text("utf-8") for path in files if path.is_file()]
    tags = re.findall(r"(?:\bdibs:|newTag: )(\d+\.[\w.+-]*)", "\n".join(texts))
    assert len(tags) >= 8
    assert set(tags) == {VERSION}


@pytest.mark.once
@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check(tmp_path: Path, tls: bool) -> None:
    settings: dict[str, Any] = {"allow_plain_http": True}
    if tls:
        certificate = self_signed(tmp_path / "server.pem")
        settings = {"tls_cert": str(certificate), "tls_key": str(key_of(certificate))}
    with World.over(**settings) as world:
        found = {"listen": f"0.0.0.0:{world.url.rpartition(':')[2]}", **settings}
        env = {f"{VARIABLE}{name.upper()}": str(value) for name, value in found.items()}
        env |= dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{free_port()}")
        check = ("env", *(f"{name}={value}" for name, value in env.items()), sys.executable)
        assert run(*check, DEPLOY / "healthcheck.py").returncode == 0
    assert run(*check, DEPLOY / "healthcheck.py").returncode == 1


def objects(text: str) -> list[Any]:
    yaml: Any = import_module("yaml")
    return list(yaml.safe_load_all(text))


def accepted(text: str) -> list[str]:
    """The objects, checked as an API server does, which also enforces the standard "restricted"."""
    done = run(kube_program().path, "check", text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.once
def test_the_overlay_on_the_page_and_the_servers_settings_go_together(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    write_files("deploy.md", tmp_path)
    built = run(kube_program().path, "kustomize", tmp_path)
    assert built.returncode == 0, built.stderr
    assert len(accepted(built.stdout)) == 4
    found = {each["kind"]: each for each in objects(built.stdout)}
    settings, deployment, service = found["ConfigMap"], found["Deployment"], found["Service"]
    template = deployment["spec"]["template"]  # whose labels match, or it was not accepted
    pod = template["spec"]
    (container,) = pod["containers"]
    assert container["image"].startswith("registry.example/dibs:")
    text, environ = settings["data"]["server.toml"], [each["name"] for each in container["env"]]
    assert all(name.startswith(VARIABLE) for name in environ)
    config = read(tmp_path, text, dict.fromkeys(environ, "postgresql://db/dibs"))
    assert container["args"] == [serve.name, "--config", "/etc/dibs/server.toml"]
    assert not read(tmp_path, text).leases, "they come from a secret"

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
    labels, budget = template["metadata"]["labels"], found["PodDisruptionBudget"]
    assert service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.once
def test_the_first_key_in_a_cluster() -> None:
    text = manifest("kubernetes/first-key.yaml")
    assert accepted(text) == ["Job/dibs-first-key"]
    (job,) = objects(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["keys", "create"]
    create.make_context("create", list(container["args"][2:]))
    (variable,) = container["env"]
    assert variable["name"] == f"{VARIABLE}LEASES"
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "dibs", "key": "store"}


@pytest.mark.once
def test_the_cron_job_runs_as_the_account_that_has_the_rights(tmp_path: Path) -> None:
    files = [manifest(f"kubernetes-{name}.yaml") for name in ("cronjob", "rbac")]
    assert len(accepted("---\n".join(files))) == 4
    (job,), rights = map(objects, files)
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    accounts = [each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount"]
    assert accounts == [pod["serviceAccountName"]]
    (container,) = pod["containers"]
    words = ("--url", f"sqlite:///{tmp_path}/leases.db", *container["args"][:-1], "0")
    assert run(sys.executable, "-m", "dibs", *words).returncode == 0
