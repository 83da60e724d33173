"""Attacks on authorization, each with its result: `python tools/attacks/authorization_attacks.py`.

Each attack is made by tests, which run now. Prints a table of the attacks and what each of them
led to. Then it runs the tests again that use tokens, with all log messages, and searches for tokens
in logs, outputs, errors and recordings; `--search PATH…` names other tests. The exit status is 1 if
a test fails, or if a token is found.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent


class Attack(NamedTuple):
    """An attack, what it leads to, and the tests that make it."""

    text: str
    result: str
    tests: Sequence[str]


_VERIFIER: Final = "tests/auth/test_verification.py::test_an_attack_is_rejected"
_ISSUER: Final = "tests/auth/test_authorization_server.py"
_CLIENT: Final = "tests/auth/test_attacks_on_clients.py"
_LOGIN: Final = "tests/auth/test_http_auth.py"
_TLS: Final = "tests/transports/http/test_tls.py"
_DOCUMENTS: Final = "tests/auth/test_oauth_clients.py"
_PROXY: Final = "tests/auth/test_identity_provider.py"
_TOKENS: Final = "tests/auth/test_provider_tokens.py"
_ENTERPRISES: Final = "tests/auth/test_enterprises.py"
_SERVER: Final = "tests/server/http/test_authorization.py"

ATTACKS: Final = (
    Attack(
        "a token for another audience",
        "401",
        [f"{_SERVER}::test_only_tokens_for_this_server_are_accepted"],
    ),
    Attack(
        "a token of another issuer, or by another key",
        "401",
        [f"{_VERIFIER}[another issuer]", f"{_VERIFIER}[a key of one's own]"],
    ),
    Attack(
        "alg: none, key confusion",
        "401",
        [f"{_VERIFIER}[no signature]", f"{_VERIFIER}[the public key as a shared secret]"],
    ),
    Attack(
        "an expired token, one that is not valid yet",
        "401",
        [f"{_VERIFIER}[an expired token]", f"{_VERIFIER}[a token that is not valid yet]"],
    ),
    Attack(
        "a DPoP proof that is used again",
        "401",
        [
            "tests/auth/test_verification.py::test_a_proof_is_accepted_once",
            f"{_SERVER}::test_a_bound_token_needs_a_proof_with_each_request",
        ],
    ),
    Attack(
        "a token without the client certificate to which it is bound",
        "401",
        [f"{_TLS}::test_a_token_that_is_bound_to_a_certificate_is_valid_with_it_only"],
    ),
    Attack(
        "a mixed-up issuer",
        "the login fails before the code is sent",
        [
            f"{_CLIENT}::test_a_code_of_an_honest_server_is_not_sent_to_another",
            "tests/auth/test_client_flow.py::test_the_issuer_of_an_authorization_response",
            "tests/auth/test_client_flow.py::test_the_error_of_another_issuer_is_not_shown",
        ],
    ),
    Attack(
        "open redirect",
        "an error page; no redirect",
        [
            f"{_ISSUER}::test_another_redirect_uri_is_shown_as_an_error_and_not_followed",
            f"{_ISSUER}::test_an_error_redirects_only_to_clients_of_the_operator",
        ],
    ),
    Attack(
        "an injected code",
        "invalid_grant; a code that is used twice ends its grant",
        [
            f"{_ISSUER}::test_a_code_is_for_one_client_verifier_address_and_minute",
            f"{_ISSUER}::test_a_code_that_is_used_twice_ends_its_grant",
        ],
    ),
    Attack(
        "cross-site request forgery",
        "403; a response with another state is rejected",
        [
            f"{_ISSUER}::test_a_forged_form_of_the_consent_page_is_rejected",
            "tests/auth/test_client_flow.py::test_a_response_with_another_state_is_refused",
            "tests/auth/test_http_auth.py::test_other_requests_change_nothing",
        ],
    ),
    Attack(
        "a redirect to another port",
        "an error page, unless the loopback URI is registered without a port",
        [
            f"{_ISSUER}::test_another_redirect_uri_is_shown_as_an_error_and_not_followed",
            f"{_ISSUER}::test_a_loopback_uri_without_a_port_stands_for_all_ports",
        ],
    ),
    Attack(
        "metadata that point to loopback or link-local addresses",
        "no request is sent",
        [
            f"{_CLIENT}::test_metadata_do_not_lead_to_this_computer",
            f"{_CLIENT}::test_a_challenge_does_not_lead_to_this_computer",
            f"{_CLIENT}::test_names_that_lead_to_this_computer",
            f"{_DOCUMENTS}::test_no_request_is_sent_to_an_address_that_is_not_public",
        ],
    ),
    Attack(
        "metadata of 10 MiB",
        "reading stops at the limit",
        [
            "tests/auth/test_discovery.py::test_a_document_of_ten_mebibytes_is_not_read_to_its_end",
            f"{_CLIENT}::test_a_response_without_end_is_not_read",
        ],
    ),
    Attack(
        "slow metadata",
        "given up after the limit",
        [
            "tests/auth/test_discovery.py::test_a_slow_document_is_given_up",
            f"{_LOGIN}::test_an_authorization_server_that_hangs_is_not_waited_for_for_ever",
        ],
    ),
    Attack(
        "redirect loops",
        "not followed, or three times",
        [
            "tests/auth/test_discovery.py::test_a_redirect_is_not_followed",
            f"{_CLIENT}::test_redirects_in_a_circle_end",
            f"{_CLIENT}::test_redirects_of_an_endpoint_are_not_followed",
        ],
    ),
    Attack(
        "a token in the query",
        "400",
        [f"{_SERVER}::test_a_token_in_the_query_is_rejected_beside_a_valid_one"],
    ),
    Attack(
        "401 for ever, 403 for ever",
        "one login; three logins",
        [
            f"{_LOGIN}::test_a_server_that_rejects_every_token_gets_one_login",
            f"{_LOGIN}::test_a_server_that_asks_for_ever_more_scopes_gets_three_logins",
        ],
    ),
    Attack(
        "eight processes that refresh at once",
        "one refreshes; the others read its token",
        [f"{_CLIENT}::test_of_eight_processes_one_refreshes"],
    ),
    Attack(
        "a store with wrong permissions, of another user, or a link",
        "not used; the error names the file",
        [
            "tests/auth/test_token_store.py::test_files_that_others_can_read_or_write_are_not_used",
            "tests/auth/test_token_store.py::test_the_file_of_another_user_is_not_used",
            "tests/auth/test_token_store.py::test_a_link_is_not_followed",
        ],
    ),
    Attack(
        "a client that uses the consent for another one, at a provider's proxy",
        "the consent page; nothing happens at the provider before",
        [
            f"{_PROXY}::test_each_user_allows_each_client_itself",
            f"{_PROXY}::test_a_link_of_an_attacker_does_not_get_to_the_provider",
            f"{_PROXY}::test_a_user_who_denies_access_does_not_get_to_the_provider",
        ],
    ),
    Attack(
        "a code that is injected at the callback of a proxy",
        "an error page; no session is opened",
        [f"{_PROXY}::test_a_code_that_is_injected_at_the_callback_opens_no_session"],
    ),
    Attack(
        "mixed-up states of logins at a proxy",
        "an error page, or 403 in another browser",
        [
            f"{_PROXY}::test_states_of_two_logins_are_not_mixed_up",
            f"{_PROXY}::test_a_login_belongs_to_one_browser_and_is_finished_once",
        ],
    ),
    Attack(
        "an error page of the provider",
        "none of its text is shown; the user is not sent anywhere",
        [f"{_PROXY}::test_the_error_page_of_the_provider_shows_none_of_its_text"],
    ),
    Attack(
        "a token of the provider that is passed through",
        "401",
        [f"{_TOKENS}::test_a_handler_calls_an_api_as_its_user_and_a_replay_needs_no_token"],
    ),
    Attack(
        "an assertion of an enterprise that is used twice, forged, or for others",
        "invalid_grant, or invalid_target",
        [
            f"{_ENTERPRISES}::test_an_assertion_is_used_once",
            f"{_ENTERPRISES}::test_an_invalid_assertion_is_rejected",
            f"{_ENTERPRISES}::test_only_clients_of_the_operator_with_a_secret_use_assertions",
        ],
    ),
)

# The tests that have tokens, codes or secrets.
SEARCHED: Final = (
    "tests/auth",
    "tests/cli/test_auth.py",
    "tests/client",
    "tests/server/http",
    "tests/transports/http/test_tls.py",
)

# JSON Web Tokens, and the tokens and secrets of the servers in tests/auth.
TOKENS: Final = re.compile(
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{20,}|(?:access|refresh)-token-\d+|client-secret-\d+"
)


def run(tests: Sequence[str], folder: Path, *options: str) -> ET.Element:
    """Run tests; return what pytest reports as JUnit XML."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    subprocess.run(
        [*command, f"--junitxml={report}", *options, *tests],
        cwd=REPOSITORY,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return ET.parse(report).getroot()


def outcomes(report: ET.Element) -> Iterator[tuple[str, bool]]:
    """Yield each test as the name of its function with its parameters, and whether it passed."""
    for case in report.iter("testcase"):
        has_failed = any(each.tag in {"failure", "error", "skipped"} for each in case)
        module = (case.get("classname") or "").replace(".", "/")
        yield f"{module}.py::{case.get('name')}", not has_failed


def is_of(name: str, test: str) -> bool:
    """Return whether a test that has run is one that an attack names, with any parameters."""
    return name == test or ("[" not in test and name.startswith(f"{test}["))


def table(folder: Path) -> bool:
    """Run the tests of the attacks, and print the table; return whether all passed."""
    tests = dict.fromkeys(test for attack in ATTACKS for test in attack.tests)
    found = dict(outcomes(run([*tests], folder)))
    all_pass = True
    print(f"{'attack':72}{'tests':>7}  result")
    for attack in ATTACKS:
        of_attack = [
            passed
            for name, passed in found.items()
            if any(is_of(name, test) for test in attack.tests)
        ]
        has_each = all(any(is_of(name, test) for name in found) for test in attack.tests)
        holds = has_each and all(of_attack)
        all_pass = all_pass and holds
        result = attack.result if holds else "WRONG: a test fails or is missing"
        print(f"{attack.text:72}{sum(of_attack):>3}/{len(of_attack):<3}  {result}")
    return all_pass


def search(tests: Sequence[str], folder: Path) -> bool:
    """Run tests, search for tokens, and print what was searched; return whether there is none."""
    report = run(
        tests,
        folder,
        f"--basetemp={folder / 'files'}",
        *("--log-level=DEBUG", "-o", "junit_logging=all"),
        *("-o", "tmp_path_retention_policy=all"),
    )
    names = [name for name, _ in outcomes(report)]
    texts = [
        (case.get("name") or "", each.text or "")
        for case in report.iter("testcase")
        for each in case
        if each.tag in {"system-out", "system-err", "failure", "error"}
    ]
    recordings = [
        path for path in (folder / "files").rglob("*") if ".jsonl" in path.name and path.is_file()
    ]
    texts += [(path.name, path.read_text("utf-8", "replace")) for path in recordings]
    chars = sum(len(text) for _, text in texts)
    print(
        f"\ntokens searched for in {len(names)} tests: {len(texts) - len(recordings)} logs,"
        f" outputs and errors, {len(recordings)} recordings, {chars:,} characters"
    )
    hits = [(name, found[0]) for name, text in texts for found in TOKENS.finditer(text)]
    for name, token in dict.fromkeys(hits):
        print(f"  FOUND in {name}: {token[:24]}…")
    print(f"  {len(hits)} found")
    return not hits and bool(names)


def main() -> int:
    parser = argparse.ArgumentParser(description="Attack authorization, and search for tokens.")
    parser.add_argument("--search", metavar="PATH", nargs="+", default=SEARCHED)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcp_trio-attacks-") as name:
        folder = Path(name)
        holds = table(folder)
        return 0 if search(options.search, folder) and holds else 1


if __name__ == "__main__":
    sys.exit(main())
