"""A data converter as a user may have one, named by `--data-converter tests.temporal.turned:turned`."""

import dataclasses
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, PayloadCodec


class Turned(PayloadCodec):
    """Writes everything backwards, in the stead of encrypting it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._turned(each) for each in payloads]

    decode = encode

    def _turned(self, payload: Payload) -> Payload:
        return Payload(metadata=payload.metadata, data=payload.data[::-1])


turned = dataclasses.replace(DataConverter.default, payload_codec=Turned())
