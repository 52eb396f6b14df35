"""A real broker that asks for TLS, a password and rights: Ann may do all, Bob what he is granted."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from lakehouse.runtime import kafka_address, kafka_broker, kafka_client, kafka_properties
from lakehouse.runtime.jars import Jars
from lakehouse.settings import Settings
from lakehouse.storage.disk import layout

_PASSWORD = 'p"w\\d'  # with what a file of properties and a login escape
_ESCAPED = _PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
_JAAS = (  # the broker is Ann to itself, by which it ends transactions
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="ann" password="{_ESCAPED}" user_ann="{_ESCAPED}" user_bob="bob";'
)


@contextmanager
def secured_broker(root: Path, jars: Jars) -> Iterator[Settings]:
    """The settings of Ann at a broker whose only listener is SASL_SSL with PLAIN."""
    local = Settings(root=root)
    home = layout.broker(local)
    home.mkdir()
    authority = certificate(home)
    address = kafka_properties.write(home)
    properties = (home / "server.properties").read_text().replace("PLAINTEXT://", "SASL_SSL://")
    properties = properties.replace("PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL")
    (home / "server.properties").write_text(
        f"{properties}inter.broker.listener.name=SASL_SSL\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
        "sasl.enabled.mechanisms=PLAIN\nssl.keystore.location=broker.p12\nssl.keystore.password=changeit\n"
        "ssl.truststore.type=PEM\nssl.truststore.location=ca.pem\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "super.users=User:ann;User:ANONYMOUS\n"  # the second is the controller
        f"listener.name.sasl_ssl.plain.sasl.jaas.config={_JAAS.replace(chr(92), chr(92) * 2)}\n"
    )
    kafka_broker._format(home, jars)
    kafka_address.write(local, kafka_broker._launch(home, jars, address))
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": _PASSWORD}
    kafka = login | {"security.protocol": "SASL_SSL", "ssl.ca.location": authority}
    try:
        yield replace(local, bootstrap_servers=address, kafka=kafka)
    finally:
        kafka_broker.stop(local)


def as_bob(settings: Settings, root: Path, **others: str) -> Settings:
    """The settings of Bob, with other properties of Kafka, by names that have `_` for `.`."""
    login = {"sasl.username": "bob", "sasl.password": "bob"}
    own = {name.replace("_", "."): value for name, value in others.items()}
    return replace(settings, root=root, kafka={**settings.kafka, **login, **own})


def certificate(home) -> str:
    """A self-signed certificate of 127.0.0.1 for the broker, and its PEM for clients."""
    keytool = shutil.which("keytool")
    store = [
        "-alias",
        "broker",
        "-keystore",
        "broker.p12",
        "-storetype",
        "PKCS12",
        "-storepass",
        "changeit",
    ]
    name = ["-keyalg", "EC", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1"]
    subprocess.run(
        [keytool, "-genkeypair", *store, *name], cwd=home, check=True, capture_output=True
    )
    subprocess.run(
        [keytool, "-exportcert", "-rfc", *store, "-file", "ca.pem"],
        cwd=home,
        check=True,
        capture_output=True,
    )
    return str(home / "ca.pem")


def grant(
    secured: Settings,
    operation: AclOperation,
    name: str,
    kind: ResourceType = ResourceType.TOPIC,
) -> None:
    """Bob may do that with the topic, or whatever has the name."""
    to = (name, ResourcePatternType.LITERAL, "User:bob", "*", operation)
    binding = AclBinding(kind, *to, AclPermissionType.ALLOW)
    admin = kafka_client.admin(secured)
    for future in admin.create_acls([binding]).values():
        future.result(30)
