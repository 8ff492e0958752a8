"""An S3 server for one test: SeaweedFS."""

import json
import secrets
from pathlib import Path

import httpx2

from tests.servers.binaries import seaweedfs_program
from tests.servers.ports import HOST
from tests.servers.server import Server

PARTS = ("s3", "master", "volume", "filer", "admin")
"""Parts of SeaweedFS, in the order of their ports. Each one's port for gRPC is 10,000 above."""

# it would take them for a user's
UNSET = ("--unset=AWS_ACCESS_KEY_ID", "--unset=AWS_SECRET_ACCESS_KEY")


class S3Server(Server):
    """A SeaweedFS with one bucket on free loopback ports. A restarted server has its objects.

    Requests are signed with `access_key` and `secret_key`, for any region. URLs have the bucket in the
    path: `{url}/{bucket}/{key}`.
    """

    PORT_IS_TAKEN = "is not available on"
    SECOND_PORT = 10_000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.program = seaweedfs_program()
        self.bucket = "tests"
        self.access_key = "tests"
        self.secret_key = secrets.token_hex(16)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for number in range(len(PARTS)):  # a killed server leaves its sockets
            for port in (self.port + number, self.port + self.SECOND_PORT + number):
                for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    socket.unlink(missing_ok=True)

    def _command(self) -> list[str | Path]:
        user = {
            "name": "tests",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        configuration = self.folder / "s3.json"
        configuration.write_text(json.dumps({"identities": [user]}))
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        command: list[str | Path] = ["env", *UNSET, self.program.path, "-logtostderr", "mini"]
        command += [f"-{part}.port={self.port + number}" for number, part in enumerate(PARTS)]
        command += [f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}", f"-bucket={self.bucket}"]
        command += [f"-s3.config={configuration}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false"]
        # or it may take no writes for 20 s after a restart
        return [*command, "-master.resumeState=false"]

    def _answers(self) -> bool:
        """Return whether it has logged that all parts are ready, and its master gives room to objects."""
        if b"components are running and ready" not in self._started.logged():
            return False
        master = f"http://{HOST}:{self.port + PARTS.index('master')}"
        try:
            url = f"{master}/dir/assign?collection={self.bucket}"
            return httpx2.get(url, verify=False).is_success
        except httpx2.TransportError:
            return False
