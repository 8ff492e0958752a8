"""What a browser is told that it may do with a page of the dashboard: load the page's own files, no more."""

from dibs.server.answers import Header

_MAY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "manifest-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'self'",
)

_FEATURES = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen",
    "geolocation", "gyroscope", "hid", "idle-detection", "magnetometer", "microphone", "midi",
    "payment", "picture-in-picture", "publickey-credentials-get", "screen-wake-lock", "serial",
    "usb", "xr-spatial-tracking",
)  # fmt: skip
"""What browsers know; `clipboard-write` is not here, as names may be copied."""

POLICY: tuple[Header, ...] = (
    (b"content-security-policy", "; ".join(_MAY).encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", ", ".join(f"{each}=()" for each in _FEATURES).encode()),
)
"""With every answer at `/` and below `/ui/`; besides those headers that every answer of a server has."""
