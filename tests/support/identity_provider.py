"""An OpenID Connect provider over real HTTP with scripted claims."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.aiohttp_server import serving

CLIENT = "the-platform"
SECRET = "the-platforms-secret-of-32-letters-or-more"


@dataclass
class IdentityProvider:
    """The server. `person` are the claims of the user who signs in."""

    issuer: str = ""
    person: dict[str, Any] = field(default_factory=dict)
    nonce: str | None = None
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    async def configuration(self, request: web.Request) -> web.Response:
        """Return the discovery document."""
        names = ("authorization", "token", "userinfo")
        ends = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in names}
        return web.json_response({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **ends})

    async def token(self, request: web.Request) -> web.Response:
        """Exchange the code for an access token and an id token."""
        form = await request.post()
        assert form["code"] == "the-code"
        assert form["code_verifier"]
        at = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": at, "exp": at + 60, **self.person}
        signed = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "1"})
        return web.json_response({"access_token": "opaque", "token_type": "Bearer", "id_token": signed})

    async def userinfo(self, request: web.Request) -> web.Response:
        """Return the claims."""
        return web.json_response(self.person)

    async def keys(self, request: web.Request) -> web.Response:
        """Return the public key."""
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return web.json_response({"keys": [{**public, "kid": "1", "alg": "RS256", "use": "sig"}]})


@contextmanager
def running_identity_provider() -> Iterator[IdentityProvider]:
    """Run the server."""
    provider = IdentityProvider()
    app = web.Application()
    app.router.add_get("/v1/.well-known/openid-configuration", provider.configuration)
    app.router.add_post("/v1/token", provider.token)
    app.router.add_get("/v1/userinfo", provider.userinfo)
    app.router.add_get("/v1/keys", provider.keys)
    with serving(app) as url:
        provider.issuer = url
        yield provider
