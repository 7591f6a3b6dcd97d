"""A small identity provider: an HTTP server on loopback with keys of its own, which signs real tokens.

``/jwks`` has the public keys, ``/token`` gives a token to who has the client's secret (OAuth 2.0, client credentials),
as providers do.  ``answers`` counts the requests for the keys; ``broken`` and ``silent`` make it misbehave.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

AUDIENCE = "logs"
SECRET = "the secret of the client"


class IdentityProvider:
    def __init__(self) -> None:
        self.keys: dict[str, RSAKey | ECKey] = {"first": RSAKey.generate_key(2048)}
        self.answers = 0
        self.broken = b""
        """Sent instead of the keys."""
        self.going_on = threading.Event()
        self.going_on.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.answers += 1
                provider.going_on.wait(60)
                self._send(provider.broken or provider.jwks())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                if form.get("client_secret") != [SECRET]:
                    self.send_error(401)
                    return
                token = provider.token(sub=form["client_id"][0])
                self._send(json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 300}).encode())

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.going_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def jwks_url(self) -> str:
        return f"{self.issuer}/jwks"

    @property
    def token_url(self) -> str:
        return f"{self.issuer}/token"

    def jwks(self) -> bytes:
        rows = [{**key.as_dict(private=False), "kid": kid, "use": "sig"} for kid, key in self.keys.items()]
        return json.dumps({"keys": rows}).encode()

    def settings(self) -> dict[str, Any]:
        """Those of an appliance that trusts it."""
        return {
            "security.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "oauth.jwks": self.jwks_url,
            "oauth.issuer": self.issuer,
            "oauth.audience": AUDIENCE,
        }

    def token(self, kid: str = "first", seconds: float = 300, algorithm: str = "", **claims: Any) -> str:
        """A token that is good for so long; claims None are left out."""
        key = self.keys[kid]
        now = time.time()
        given = {"iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "iat": int(now), "exp": int(now + seconds)}
        kept = {name: value for name, value in {**given, **claims}.items() if value is not None}
        algorithm = algorithm or ("RS256" if isinstance(key, RSAKey) else "ES256")
        return jwt.encode({"alg": algorithm, "kid": kid}, kept, key, algorithms=[algorithm])
