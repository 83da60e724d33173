"""Verifiers of tokens: which tokens are accepted, and what is fetched for that."""

import base64
import gc
import hmac
import json

import httpx2
import pytest
import trio
from joserfc import jwk, jws

from mcp_trio._auth.verification import InvalidProofError, NonceNeededError
from mcp_trio.auth import (
    AuthInfo,
    DPoP,
    Introspection,
    InvalidTokenError,
    JWTVerifier,
    StaticTokens,
    VerifierUnavailableError,
)
from mcp_trio.errors import SERVER_BUSY, RequestError
from mcp_trio.http import MemoryStore
from tests.auth.conftest import ISSUER, NOW, RESOURCE, Issuer, proof_of
from tests.clocks import Clock


def now():
    return NOW


def verifier_for(issuer, **options):
    options = {"http_client": issuer.client, "now": now, **options}
    return JWTVerifier(ISSUER, **options)


@pytest.fixture
def verifier(issuer):
    return verifier_for(issuer)


@pytest.mark.requirement("AUTHX-03", "AUTH-09")
async def test_a_signed_token_gives_the_facts_about_its_sender(issuer, verifier):
    auth = await verifier.verify(issuer.token(email="anna@example.org"))
    assert (auth.subject, auth.client, auth.scopes) == ("anna", "buoy", {"notes:read"})
    assert auth.expires_at == NOW + 600
    assert auth.claims["email"] == "anna@example.org"
    assert auth.principal == "anna"
    assert issuer.requests == [f"{ISSUER}/.well-known/oauth-authorization-server", f"{ISSUER}/keys"]


def test_no_user_has_the_principal_of_a_client_or_of_another_user():
    subjects = ["buoy", "client buoy", "user buoy", "user client buoy", "clients"]
    senders = [AuthInfo(client="buoy"), *(AuthInfo(subject=each) for each in subjects)]
    principals = [sender.principal for sender in senders]
    assert principals[:2] == ["client buoy", "buoy"]
    assert len(set(principals)) == len(senders)
    assert AuthInfo(subject="anna", client="buoy").principal == "anna"
    assert AuthInfo().principal == ""


@pytest.mark.parametrize(
    ("claims", "scopes", "client"),
    [
        ({"scope": "a b"}, {"a", "b"}, "buoy"),
        ({"scope": None}, set(), "buoy"),
        ({"scope": ["a", "b"]}, {"a", "b"}, "buoy"),
        ({"scope": None, "scp": "a"}, {"a"}, "buoy"),
        ({"client_id": None, "azp": "okapi"}, {"notes:read"}, "okapi"),
    ],
)
async def test_the_claims_of_other_authorization_servers_are_known(
    issuer, verifier, claims, scopes, client
):
    auth = await verifier.verify(issuer.token(**claims))
    assert (auth.scopes, auth.client) == (scopes, client)


def encoded(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# As a header it is within the limit of 8 KiB, and nested more deeply than a decoder goes.
NESTED = encoded(b'{"typ": "dpop+jwt", "alg": ' + b"[" * 3000 + b"]" * 3000 + b"}")


def unsigned(issuer):
    _, payload, _ = issuer.token().split(".")
    header = encoded(json.dumps({"alg": "none"}).encode())
    return f"{header}.{payload}."


def signed_with_the_public_key(issuer):
    """Key confusion: the public key as the shared secret of HS256."""
    _, payload, _ = issuer.token().split(".")
    header = {"alg": "HS256", "typ": "at+jwt", "kid": "1"}
    signed = f"{encoded(json.dumps(header).encode())}.{payload}"
    pem = issuer.keys["1"].as_pem(private=False)
    return f"{signed}.{encoded(hmac.digest(pem, signed.encode(), 'sha256'))}"


def with_its_own_key(issuer):
    return issuer.token(key=jwk.ECKey.generate_key("P-256"))


def changed(issuer):
    header, payload, signature = issuer.token().split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    claims["sub"] = "root"
    return f"{header}.{encoded(json.dumps(claims).encode())}.{signature}"


def with_a_lone_surrogate(issuer):
    """JSON can escape one, but UTF-8 has no form for it."""
    _, payload, _ = issuer.token().split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "==")) | {"sub": "\ud800"}
    header = {"alg": "ES256", "typ": "at+jwt", "kid": "1"}
    return jws.serialize_compact(header, json.dumps(claims).encode(), issuer.keys["1"])


# The rows of the table in docs/how-to/protect-a-server.md.
ATTACKS = {
    "another issuer": (lambda it: it.token(iss="https://evil.example"), "iss"),
    "the issuer with a slash": (lambda it: it.token(iss=f"{ISSUER}/"), "iss"),
    "no issuer": (lambda it: it.token(iss=None), "iss"),
    "a key of one's own": (with_its_own_key, "signed by no key"),
    "changed claims": (changed, "signed by no key"),
    "no signature": (unsigned, "allowed algorithm"),
    "the public key as a shared secret": (signed_with_the_public_key, "allowed algorithm"),
    "an expired token": (lambda it: it.token(exp=NOW - 31), "expired"),
    "a token without an expiry": (lambda it: it.token(exp=None), "exp"),
    "a token that is not valid yet": (lambda it: it.token(nbf=NOW + 31), "not yet valid"),
    "a token from the future": (lambda it: it.token(iat=NOW + 31), "future"),
    "no audience": (lambda it: it.token(aud=None), "aud"),
    "an ID token": (lambda it: it.token(typ="id+jwt"), "not that of an access token"),
    "a DPoP proof": (lambda it: it.token(typ="dpop+jwt"), "not that of an access token"),
    "a token without a subject": (lambda it: it.token(sub=None, client_id=None), "neither"),
    "no JSON Web Token": (lambda _: "abc", "JSON Web Token"),
    "a header that is nested deeply": (lambda _: f"{NESTED}.e30.AA", "JSON Web Token"),
    "a token of one MiB": (lambda _: "a.b." + "c" * 2**20, "JSON Web Token"),
    "a subject that is a number": (lambda it: it.token(sub=7), "sub"),
    "a subject that is not Unicode": (with_a_lone_surrogate, "not Unicode"),
    "scopes that are a number": (lambda it: it.token(scope=7), "scope"),
}


@pytest.mark.requirement("AUTH-06", "AUTH-09", "AUTHX-03", "TRAP-120")
@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_is_rejected(issuer, verifier, attack):
    make, reason = ATTACKS[attack]
    with pytest.raises(InvalidTokenError, match=reason):
        await verifier.verify(make(issuer))


@pytest.mark.parametrize("typ", ["at+jwt", "application/at+jwt", "JWT", None])
async def test_the_types_of_access_tokens(issuer, verifier, typ):
    assert (await verifier.verify(issuer.token(typ=typ))).subject == "anna"
    strict = verifier_for(issuer, requires_token_type=True)
    if typ in {"JWT", None}:
        with pytest.raises(InvalidTokenError, match="not that of an access token"):
            await strict.verify(issuer.token(typ=typ))
    else:
        assert (await strict.verify(issuer.token(typ=typ))).subject == "anna"


async def test_a_verified_token_is_cached_until_it_expires(issuer):
    time = [NOW]
    verifier = verifier_for(issuer, now=lambda: time[0], leeway_seconds=0)
    token = issuer.token(exp=NOW + 60)
    auth = await verifier.verify(token)
    assert await verifier.verify(token) is auth
    time[0] += 60
    with pytest.raises(InvalidTokenError, match="expired"):
        await verifier.verify(token)


async def test_a_removed_key_is_trusted_no_longer_than_tokens_are_cached(issuer, autojump_clock):
    time = [NOW]
    verifier = verifier_for(issuer, now=lambda: time[0], cache_seconds=300)
    token = issuer.token(exp=NOW + 86_400)
    auth = await verifier.verify(token)
    issuer.keys = {"2": jwk.ECKey.generate_key("P-256", {"kid": "2"})}
    await trio.sleep(600)  # the keys are fetched again
    time[0] += 299
    assert await verifier.verify(token) is auth
    time[0] += 1
    with pytest.raises(InvalidTokenError, match="signed by no key"):
        await verifier.verify(token)


# Keys.


async def test_a_new_key_is_fetched_once_per_interval(issuer, verifier, autojump_clock):
    await verifier.verify(issuer.token())
    await trio.sleep(31)
    issuer.keys["2"] = jwk.ECKey.generate_key("P-256", {"kid": "2"})
    fetched = len(issuer.requests)
    assert (await verifier.verify(issuer.token("2"))).subject == "anna"
    assert len(issuer.requests) == fetched + 1
    stranger = jwk.ECKey.generate_key("P-256")
    for number in range(100):  # unknown keys cause no further requests
        with pytest.raises(InvalidTokenError, match="signed by no key"):
            await verifier.verify(issuer.token(f"x{number}", key=stranger))
    assert len(issuer.requests) == fetched + 1
    await trio.sleep(31)
    with pytest.raises(InvalidTokenError, match="signed by no key"):
        await verifier.verify(issuer.token("x", key=stranger))
    assert len(issuer.requests) == fetched + 2


async def test_concurrent_requests_fetch_the_keys_once(issuer, verifier, autojump_clock):
    async def slowly(_):
        await trio.sleep(1)
        return httpx2.Response(200, json=issuer.key_set)

    issuer.answers["/keys"] = slowly
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(verifier.verify, issuer.token(jti=str(number)))
    assert issuer.requests.count(f"{ISSUER}/keys") == 1


async def test_an_issuer_that_is_away_is_not_a_wrong_token(issuer, verifier, autojump_clock):
    issuer.is_away()
    for _ in range(3):
        with pytest.raises(VerifierUnavailableError, match="connection refused"):
            await verifier.verify(issuer.token())
    assert len(issuer.requests) == 1  # it is not asked with each request
    issuer.answers.clear()
    await trio.sleep(30)
    assert (await verifier.verify(issuer.token())).subject == "anna"


async def test_known_keys_are_used_while_the_issuer_is_away(issuer, verifier, autojump_clock):
    await verifier.verify(issuer.token())
    issuer.is_away()
    await trio.sleep(3600)
    assert (await verifier.verify(issuer.token(jti="2"))).subject == "anna"
    stranger = jwk.ECKey.generate_key("P-256")
    for _ in range(2):  # whether it has this key now is not known
        with pytest.raises(VerifierUnavailableError):
            await verifier.verify(issuer.token("9", key=stranger))
    await trio.sleep(86_400)
    with pytest.raises(VerifierUnavailableError):
        await verifier.verify(issuer.token(jti="3"))


async def test_known_keys_are_used_while_a_slow_issuer_sends_them_again(
    issuer, verifier, nursery, autojump_clock
):
    await verifier.verify(issuer.token())

    async def never(_request):
        await trio.sleep_forever()

    issuer.answers |= dict.fromkeys(("/.well-known/oauth-authorization-server", "/keys"), never)
    await trio.sleep(3600)
    nursery.start_soon(verifier.verify, issuer.token(jti="2"))
    await trio.sleep(1)
    with trio.fail_after(1):
        assert (await verifier.verify(issuer.token(jti="3"))).subject == "anna"
    await trio.sleep(10)


async def test_metadata_of_another_issuer_may_be_at_the_first_url(issuer, verifier):
    issuer.answers["/.well-known/oauth-authorization-server"] = httpx2.Response(
        200, json={"issuer": "https://other.example"}
    )
    issuer.answers["/.well-known/openid-configuration"] = httpx2.Response(200, json=issuer.metadata)
    assert (await verifier.verify(issuer.token())).subject == "anna"


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (
            "/.well-known/oauth-authorization-server",
            {"issuer": "https://evil.example"},
            "not 'https://issuer",
        ),
        ("/.well-known/oauth-authorization-server", {"issuer": ISSUER}, "no jwks_uri"),
        (
            "/.well-known/oauth-authorization-server",
            {"issuer": ISSUER, "jwks_uri": "http://10.0.0.1/keys"},
            "not an https URL",
        ),
        ("/keys", {"keys": "all"}, "not a valid document"),
    ],
)
@pytest.mark.requirement("TRAP-120")
async def test_documents_that_cannot_be_trusted_are_not_used(
    issuer, verifier, path, answer, reason
):
    issuer.answers[path] = httpx2.Response(200, json=answer)
    with pytest.raises(VerifierUnavailableError, match=reason):
        await verifier.verify(issuer.token())


async def test_keys_that_cannot_verify_are_left_out(issuer, verifier):
    secret = jwk.OctKey.generate_key(256, {"kid": "1"})
    junk = [{"kty": "new"}, {"kty": "RSA"}, {}, secret.as_dict(private=True)]
    other = jwk.ECKey.generate_key("P-256", {"kid": "e"})
    encryption = other.as_dict(private=False) | {"use": "enc"}
    keys = {"keys": [*junk, encryption, *issuer.key_set["keys"]]}
    issuer.answers["/keys"] = httpx2.Response(200, json=keys)
    assert (await verifier.verify(issuer.token())).subject == "anna"
    assert (await verifier.verify(issuer.token(None))).subject == "anna"  # without a key id
    with pytest.raises(InvalidTokenError, match="signed by no key"):
        await verifier.verify(issuer.token("e", key=other))


async def test_given_keys_are_not_fetched(issuer):
    verifier = verifier_for(issuer, keys=issuer.key_set)
    assert (await verifier.verify(issuer.token())).subject == "anna"
    assert issuer.requests == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"algorithms": ["HS256"]}, "HS256"),
        ({"algorithms": ["none"]}, "none"),
        ({"algorithms": []}, "choose from"),
        ({"jwks_uri": "http://issuer.example/keys"}, "not an https URL"),
        ({"keys": {"keys": []}}, "no key"),
    ],
)
def test_settings_that_would_accept_anything_are_rejected(options, problem):
    with pytest.raises(ValueError, match=problem):
        JWTVerifier(ISSUER, **options)


# Introspection.


def introspection_for(issuer, **options):
    options = {
        "client_id": "the server",
        "client_secret": "s:1",
        "http_client": issuer.client,
        "now": now,
        **options,
    }
    return Introspection(ISSUER, **options)


ACTIVE = {
    "active": True,
    "sub": "anna",
    "client_id": "buoy",
    "scope": "a b",
    "aud": [RESOURCE],
    "exp": NOW + 600,
}


async def test_a_token_is_looked_up_once_while_it_is_cached(issuer):
    issuer.introspected["opaque"] = ACTIVE
    time = [NOW]
    verifier = introspection_for(issuer, now=lambda: time[0])
    auth = await verifier.verify("opaque")
    assert (auth.subject, auth.client, auth.scopes) == ("anna", "buoy", {"a", "b"})
    assert await verifier.verify("opaque") is auth
    form, authorization = issuer.forms[0]
    assert form == {"token": "opaque", "token_type_hint": "access_token"}
    scheme, _, encoded = authorization.partition(" ")
    assert (scheme, base64.b64decode(encoded)) == ("Basic", b"the%20server:s%3A1")
    issuer.introspected.clear()  # it is revoked
    time[0] += 60
    assert await verifier.verify("opaque") is None
    assert len(issuer.forms) == 2


async def test_null_in_a_response_is_an_absent_member(issuer):
    members = {"active": True, "aud": RESOURCE, "sub": "anna", "scope": None, "exp": None}
    issuer.introspected |= {"none": members, "some": {**members, "scp": ["a"]}}
    introspection = introspection_for(issuer)
    assert (await introspection.verify("none")).scopes == frozenset()
    assert (await introspection.verify("some")).scopes == {"a"}


async def test_a_token_is_looked_up_once_by_all_instances_with_one_store(issuer):
    issuer.introspected["opaque"] = ACTIVE
    time = [NOW]
    store = MemoryStore(now=lambda: time[0])
    one, two, three = (introspection_for(issuer, now=lambda: time[0]) for _ in range(3))
    one.store = two.store = three.store = store
    auth = await one.verify("opaque")
    time[0] += 20
    assert await two.verify("opaque") == auth
    assert len(issuer.forms) == 1
    ((key, used),) = store._used.items()
    assert used.ends == NOW + 60
    assert "opaque" not in key
    assert b"opaque" not in used.reply
    issuer.introspected.clear()  # it is revoked
    time[0] += 39
    assert await two.verify("opaque") == auth
    time[0] += 1  # the time counts from the look-up, on all instances
    for each in (two, three):
        assert await each.verify("opaque") is None


async def test_each_instance_looks_tokens_up_while_the_store_is_away(issuer):
    class Away:
        async def take(self, *_, **__):
            raise RequestError(SERVER_BUSY, "away")

        kept = take

    issuer.introspected["opaque"] = ACTIVE
    one, two = introspection_for(issuer), introspection_for(issuer)
    one.store = two.store = Away()
    assert await one.verify("opaque") == await two.verify("opaque")
    assert len(issuer.forms) == 2


async def test_the_secret_may_be_sent_in_the_form(issuer):
    issuer.introspected["opaque"] = ACTIVE
    verifier = introspection_for(issuer, auth_method="client_secret_post")
    await verifier.verify("opaque")
    form, authorization = issuer.forms[0]
    assert (form["client_id"], form["client_secret"], authorization) == ("the server", "s:1", None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"aud": None}, "no audience"),
        ({"nbf": NOW + 31}, "not yet valid"),
        ({"exp": NOW - 31}, "expired"),
        ({"exp": "soon"}, "exp"),
        ({"exp": True}, "exp"),
    ],
)
async def test_an_active_token_may_be_rejected(issuer, change, reason):
    issuer.introspected["opaque"] = ACTIVE | change
    with pytest.raises(InvalidTokenError, match=reason):
        await introspection_for(issuer).verify("opaque")


@pytest.mark.parametrize("active", ["true", 1, None])
async def test_only_true_is_active(issuer, active):
    issuer.introspected["opaque"] = ACTIVE | {"active": active}
    assert await introspection_for(issuer).verify("opaque") is None


async def test_a_server_that_the_issuer_rejects_is_not_a_wrong_token(issuer):
    issuer.answers["/introspect"] = httpx2.Response(401)
    with pytest.raises(VerifierUnavailableError, match="HTTP status 401"):
        await introspection_for(issuer).verify("opaque")


# Fixed tokens, and secrets.


async def test_static_tokens_accept_exactly_the_given_tokens():
    verifier = StaticTokens({"one": "anna", "two": AuthInfo(subject="bert", scopes={"a"})})
    assert await verifier.verify("one") == AuthInfo(subject="anna")
    assert (await verifier.verify("two")).scopes == {"a"}
    for wrong in ("", "on", "onee", "three"):
        assert await verifier.verify(wrong) is None
    with pytest.raises(ValueError, match="at least one character"):
        StaticTokens({"": "anna"})


def test_the_facts_about_a_sender_are_json():
    with pytest.raises(TypeError, match=r"write \{'a b'\}"):
        AuthInfo(scopes="a b")
    with pytest.raises(TypeError):
        AuthInfo(claims={"key": object()})
    for facts in ({"subject": "\ud800"}, {"client": "\ud800"}, {"scopes": {"\ud800"}}):
        with pytest.raises(ValueError, match="not Unicode"):
            AuthInfo(**facts)


async def test_no_verifier_keeps_a_token_or_shows_a_secret(issuer):
    token = issuer.token()
    issuer.introspected[token] = ACTIVE
    verifiers = [
        verifier_for(issuer),
        introspection_for(issuer, client_secret="hush-hush"),
        StaticTokens({token: "anna"}),
    ]
    for verifier in verifiers:
        assert await verifier.verify(token) is not None
        assert not {"hush-hush", token} & set(repr(verifier).split())
    issuer.introspected.clear()
    issuer.forms.clear()
    digest_only = [each for each in gc.get_objects() if isinstance(each, dict) and token in each]
    assert digest_only == []


async def test_an_error_does_not_quote_the_token(issuer, caplog):
    issuer.is_away()
    for verifier in (
        verifier_for(issuer),
        introspection_for(issuer, endpoint=f"{ISSUER}/introspect"),
    ):
        token = Issuer().token()
        with pytest.raises(VerifierUnavailableError) as caught:
            await verifier.verify(token)
        assert token not in str(caught.value)
    assert token not in caplog.text


# Proofs that a client has the key to which its token is bound.

KEY = jwk.ECKey.generate_key("P-256")
OTHER = jwk.ECKey.generate_key("P-256")


@pytest.fixture
def clock():
    return Clock(NOW)


async def check(dpop, proof, *, key=KEY):
    await dpop.check(proof, method="POST", url=RESOURCE, token="abc", thumbprint=key.thumbprint())


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"iat": NOW - 60},
        {"iat": NOW + 60},
        {"htu": "https://SERVER.example:443/mcp?x=1#y"},
        {"jti": "\ud800"},
    ],
)
async def test_a_proof_is_accepted(clock, claims):
    await check(DPoP(now=clock), proof_of(KEY, **claims))


@pytest.mark.requirement("AUTHX-21")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"typ": "at+jwt"}, r"type \(typ\) of the proof"),
        ({"htm": "GET"}, "another method"),
        ({"htu": "https://other.example/mcp"}, "another URL"),
        ({"htu": "http://server.example/mcp"}, "another URL"),
        ({"htu": f"{RESOURCE}/x"}, "another URL"),
        ({"htu": "https://server.example:x/mcp"}, "another URL"),
        ({"htu": None}, "another URL"),
        ({"ath": None}, "another token"),
        ({"token": "other"}, "another token"),
        ({"iat": NOW - 61}, "too old"),
        ({"iat": NOW + 61}, "future"),
        ({"iat": None}, "too old"),
        ({"iat": 10**400}, "future"),
        ({"iat": float("nan")}, "too old"),
        ({"iat": True}, "too old"),
        ({"jti": None}, "no jti"),
        ({"jti": "x" * 257}, "no jti"),
        ({"public": OTHER.as_dict(private=False)}, "not signed"),
        ({"public": KEY.as_dict(private=True)}, "no public key"),
        ({"public": {"kty": "oct", "k": "AAAA"}}, "no public key"),
        ({"public": {}}, "not signed"),
    ],
)
async def test_another_proof_is_rejected(clock, change, reason):
    clock.seconds = float(NOW)
    with pytest.raises(InvalidProofError, match=reason):
        await check(DPoP(now=clock), proof_of(KEY, **change))


@pytest.mark.requirement("AUTHX-21")
async def test_a_proof_by_another_key_is_rejected(clock):
    with pytest.raises(InvalidProofError, match="another key"):
        await check(DPoP(now=clock), proof_of(OTHER))
    target = {"method": "POST", "url": RESOURCE, "token": "abc"}
    with pytest.raises(InvalidProofError, match="another key"):
        await DPoP(now=clock).check(proof_of(KEY), **target, thumbprint="\u00e9")
    for junk in ("", "a.b.c", "ä.b.c", f"{NESTED}.e30.AA"):
        with pytest.raises(InvalidProofError, match="not signed"):
            await check(DPoP(now=clock), junk)


@pytest.mark.requirement("AUTHX-22")
async def test_a_proof_is_accepted_once(clock):
    dpop, proof = DPoP(now=clock), proof_of(KEY)
    await check(dpop, proof)
    for clock.seconds in (NOW, NOW + 60):
        with pytest.raises(InvalidProofError, match="used before"):
            await check(dpop, proof)
    await check(dpop, proof_of(KEY, iat=clock.seconds))


async def test_used_proofs_are_forgotten_when_they_are_too_old_to_be_accepted(clock):
    dpop = DPoP(now=clock)
    for number in range(10):
        await check(dpop, proof_of(KEY, jti=str(number)))
    clock.seconds += 120
    await check(dpop, proof_of(KEY, iat=clock.seconds))
    assert len(dpop._used_until) == 1


async def test_used_proofs_are_bounded(clock):
    dpop = DPoP(now=clock, proofs_max=3)
    for number in range(10):
        await check(dpop, proof_of(KEY, jti=str(number)))
    assert len(dpop._used_until) == 3


async def test_a_nonce_is_valid_for_some_time(clock):
    dpop = DPoP(now=clock, uses_nonces=True)
    nonce = dpop.nonce()
    await check(dpop, proof_of(KEY, nonce=nonce))
    same_key = DPoP(now=clock, uses_nonces=True, nonce_key=dpop.nonce_key)
    await check(same_key, proof_of(KEY, nonce=nonce))
    for wrong in (None, "", "é", 7, nonce[:-2], DPoP(now=clock).nonce()):
        with pytest.raises(NonceNeededError):
            await check(dpop, proof_of(KEY, nonce=wrong))
    clock.seconds += 61
    with pytest.raises(NonceNeededError):
        await check(dpop, proof_of(KEY, iat=clock.seconds, nonce=nonce))


def test_algorithms_with_a_shared_secret_are_rejected():
    with pytest.raises(ValueError, match="HS256"):
        DPoP(algorithms=["HS256"])


@pytest.mark.requirement("AUTHX-22")
async def test_a_proof_is_accepted_once_by_all_instances_with_one_store(clock):
    one, other, proof = DPoP(now=clock), DPoP(now=clock), proof_of(KEY)
    one.store = other.store = MemoryStore()
    await check(one, proof)
    with pytest.raises(InvalidProofError, match="used before"):
        await check(other, proof)
    await check(other, proof_of(KEY))


async def test_no_proof_is_accepted_while_the_store_is_away(clock):
    class Away(MemoryStore):
        async def take(self, *_, **__):
            raise RequestError(SERVER_BUSY, "away")

    dpop = DPoP(now=clock)
    dpop.store = Away()
    with pytest.raises(VerifierUnavailableError, match="the store of used proofs is unavailable"):
        await check(dpop, proof_of(KEY))
