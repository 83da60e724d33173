"""Self-signed certificates of servers at this machine."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed(folder: Path, *, name: str = "test", host: str = "") -> dict[str, str]:
    """Make a certificate in a folder; return the TLS options of a server, with the paths.

    Args:
        folder: An existing folder.
        name: The common name.
        host: The DNS name that the certificate is for; without one it is for 127.0.0.1.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now, address = dt.datetime.now(dt.UTC), ipaddress.ip_address("127.0.0.1")
    subjects = [x509.DNSName(host) if host else x509.IPAddress(address)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(subjects), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    certfile.write_bytes(certificate.public_bytes(pem))
    keyfile.write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    return {"certfile": str(certfile), "keyfile": str(keyfile)}
