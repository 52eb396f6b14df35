"""The translated properties against a real broker that asks for TLS and a password."""

import shutil
import subprocess
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lakehouse.runtime import kafka_address, kafka_broker, kafka_properties
from lakehouse.runtime.jars import resolve
from lakehouse.runtime.kafka_options import client_config, spark_options
from lakehouse.settings import Settings, from_environment, java
from lakehouse.storage import layout

pytestmark = [pytest.mark.slow, pytest.mark.parallel]

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="p\\"w\\\\d";'


@pytest.fixture(scope="module")
def jars():
    return resolve(from_environment().jars)


@pytest.fixture(scope="module")
def secured(tmp_path_factory, jars):
    """Settings of a client of a broker whose only listener is SASL_SSL with PLAIN."""
    local = Settings(root=tmp_path_factory.mktemp("secured"))
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
        f"listener.name.sasl_ssl.plain.sasl.jaas.config={JAAS.replace(chr(92), chr(92) * 2)}\n"
    )
    kafka_broker._format(home, jars)
    kafka_address.write(local, kafka_broker._launch(home, jars, address))
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": 'p"w\\d'}
    kafka = login | {"security.protocol": "SASL_SSL", "ssl.ca.location": authority}
    yield replace(local, bootstrap_servers=address, kafka=kafka)
    kafka_broker.stop(local)


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


def test_confluents_client_is_let_in(secured):
    assert AdminClient(client_config(secured) | {"log_level": "0"}).list_topics(timeout=30).brokers


def test_a_wrong_password_is_not(secured):
    wrong = replace(secured, kafka={**secured.kafka, "sasl.password": "wrong"})
    with pytest.raises(KafkaException):
        AdminClient(client_config(wrong) | {"log_level": "0"}).list_topics(timeout=2)


def test_javas_client_is_let_in(secured, jars, tmp_path):
    options = {name.removeprefix("kafka."): value for name, value in spark_options(secured).items()}
    escaped = {name: value.replace("\\", "\\\\") for name, value in options.items()}
    (tmp_path / "client.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in escaped.items())
    )
    describe = ["--describe", "--entity-type", "brokers", "--entity-name", "1", "--all"]
    to = [
        "--bootstrap-server",
        secured.bootstrap_servers,
        "--command-config",
        str(tmp_path / "client.properties"),
    ]
    command = [
        java(),
        "-cp",
        ":".join(map(str, jars.kafka)),
        "kafka.admin.ConfigCommand",
        *to,
        *describe,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "message.max.bytes=16777216" in run.stdout
