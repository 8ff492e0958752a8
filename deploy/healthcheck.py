"""Ask the server in this container whether it lives.

It reads the server's settings from the environment, and from the file that DIBS_SERVER_CONFIG names.
"""

import ssl
import urllib.request

from dibs.server.config import read_config

config = read_config(None, {})
scheme = "https" if config.tls_cert else "http"
url = f"{scheme}://127.0.0.1:{config.address[1]}/livez"
context = ssl.create_default_context()
context.check_hostname = False  # it is this container, by no name of the certificate
context.verify_mode = ssl.CERT_NONE
opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),  # the environment's proxies do not lead into this container
    urllib.request.HTTPSHandler(context=context),
)
opener.open(url, timeout=4)
