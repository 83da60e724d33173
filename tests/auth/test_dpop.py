"""Proofs that a client has the key to which its token is bound."""

import pytest
from joserfc import jwk

from mcp_trio._auth.dpop import InvalidProofError, NonceNeededError
from mcp_trio._auth.issuers import VerifierUnavailableError
from mcp_trio.auth import DPoP
from mcp_trio.errors import SERVER_BUSY, RequestError
from mcp_trio.http import MemoryStore
from tests.auth.conftest import NOW, RESOURCE, proof_of

KEY = jwk.ECKey.generate_key("P-256")
OTHER = jwk.ECKey.generate_key("P-256")


class Clock:
    time = NOW

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


async def check(dpop, proof, *, key=KEY):
    await dpop.check(proof, method="POST", url=RESOURCE, token="abc", thumbprint=key.thumbprint())


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"iat": NOW - 60},
        {"iat": NOW + 60},
        {"htu": "https://SERVER.example:443/mcp?x=1#y"},
    ],
)
async def test_a_proof_is_accepted(clock, claims):
    await check(DPoP(now=clock), proof_of(KEY, **claims))


@pytest.mark.requirement("AUTHX-21")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"typ": "at+jwt"}, "another type"),
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
        ({"jti": None}, "no jti"),
        ({"jti": "x" * 257}, "no jti"),
        ({"public": OTHER.as_dict(private=False)}, "not signed"),
        ({"public": KEY.as_dict(private=True)}, "no public key"),
        ({"public": {"kty": "oct", "k": "AAAA"}}, "no public key"),
        ({"public": {}}, "not signed"),
    ],
)
async def test_another_proof_is_rejected(clock, change, reason):
    with pytest.raises(InvalidProofError, match=reason):
        await check(DPoP(now=clock), proof_of(KEY, **change))


@pytest.mark.requirement("AUTHX-21")
async def test_a_proof_by_another_key_is_rejected(clock):
    with pytest.raises(InvalidProofError, match="another key"):
        await check(DPoP(now=clock), proof_of(OTHER))
    for junk in ("", "a.b.c", "ä.b.c"):
        with pytest.raises(InvalidProofError, match="not signed"):
            await check(DPoP(now=clock), junk)


@pytest.mark.requirement("AUTHX-22")
async def test_a_proof_is_accepted_once(clock):
    dpop, proof = DPoP(now=clock), proof_of(KEY)
    await check(dpop, proof)
    for clock.time in (NOW, NOW + 60):
        with pytest.raises(InvalidProofError, match="used before"):
            await check(dpop, proof)
    await check(dpop, proof_of(KEY, iat=clock.time))


async def test_used_proofs_are_forgotten_when_they_are_too_old_to_be_accepted(clock):
    dpop = DPoP(now=clock)
    for number in range(10):
        await check(dpop, proof_of(KEY, jti=str(number)))
    clock.time += 120
    await check(dpop, proof_of(KEY, iat=clock.time))
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
    clock.time += 61
    with pytest.raises(NonceNeededError):
        await check(dpop, proof_of(KEY, iat=clock.time, nonce=nonce))


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
    with pytest.raises(VerifierUnavailableError, match="the store of used proofs is away"):
        await check(dpop, proof_of(KEY))
