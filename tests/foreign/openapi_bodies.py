"""Token requests for schemathesis, which cannot make them of the description: it says that they are bytes.

POSTERN_REQUESTS names a JSON file with requests that the issuer answers with tokens, in base64, by media type. With
POSTERN_BODIES=good they are sent as they are; with POSTERN_BODIES=damaged they are cut, lengthened, changed or replaced.
"""

import base64
import json
import os

import schemathesis
from hypothesis import strategies as st


def changed(request, place, difference):
    place %= len(request)
    return request[:place] + bytes([request[place] ^ difference]) + request[place + 1 :]


def damaged(good):
    places = st.integers(0, 1_000)
    return st.one_of(
        st.builds(lambda request, place: request[: place % len(request)], good, places),
        st.builds(lambda request, more: request + more, good, st.binary(min_size=1, max_size=1_200)),
        st.builds(changed, good, st.integers(0, 3) | places, st.integers(1, 255)),
        st.binary(max_size=1_200),
    )


with open(os.environ["POSTERN_REQUESTS"]) as file:
    requests = json.load(file)
for media_type, bodies in requests.items():
    good = st.sampled_from([base64.b64decode(body) for body in bodies])
    bodies = {"good": good, "damaged": damaged(good)}[os.environ["POSTERN_BODIES"]]
    schemathesis.openapi.media_type(media_type, bodies)


@schemathesis.deserializer("application/private-token-issuer-directory")
def directory(_context, response):
    return json.loads(response.content)
