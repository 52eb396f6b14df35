import pytest

from lakehouse.errors import BrokerError, SettingsError
from lakehouse.runtime.kafka_client import turned_away
from lakehouse.runtime.kafka_options import client_config, spark_options
from lakehouse.settings import Settings

KEY = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"


def settings(**kafka: str) -> Settings:
    return Settings(
        bootstrap_servers="kafka:9093", kafka={k.replace("_", "."): v for k, v in kafka.items()}
    )


def java(**kafka: str) -> dict[str, str]:
    return {
        name.removeprefix("kafka."): value
        for name, value in spark_options(settings(**kafka)).items()
    }


def test_every_option_of_spark_has_the_prefix_and_the_address():
    options = spark_options(settings())
    assert all(name.startswith("kafka.") for name in options)
    assert options["kafka.bootstrap.servers"] == "kafka:9093"
    assert client_config(settings())["bootstrap.servers"] == "kafka:9093"


def test_spark_fetches_more_at_a_time_than_kafka_would_unless_told_otherwise():
    assert int(java()["max.poll.records"]) > 500
    assert int(java()["max.partition.fetch.bytes"]) > 1 << 20
    assert java(max_poll_records="50")["max.poll.records"] == "50"


def test_the_address_may_come_with_the_client_properties():
    given = Settings(kafka={"bootstrap.servers": "other:9092"})
    assert client_config(given)["bootstrap.servers"] == "other:9092"
    assert spark_options(given)["kafka.bootstrap.servers"] == "other:9092"


def test_without_an_address_and_a_running_broker_the_error_says_how_to_get_one(tmp_path):
    with pytest.raises(BrokerError, match="LAKEHOUSE_BOOTSTRAP_SERVERS"):
        client_config(Settings(root=tmp_path))


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "PlainLoginModule"),
        ("SCRAM-SHA-256", "ScramLoginModule"),
        ("SCRAM-SHA-512", "ScramLoginModule"),
    ],
)
def test_user_name_and_password_become_a_login_module(mechanism, module):
    given = java(sasl_mechanism=mechanism, sasl_username="ann", sasl_password='p"w\\d')
    assert given["sasl.jaas.config"].endswith(
        f'.{module} required username="ann" password="p\\"w\\\\d";'
    )
    assert given["sasl.mechanism"] == mechanism
    assert not {"sasl.username", "sasl.password"} & given.keys()


def test_librdkafkas_other_spelling_of_the_mechanism_is_understood():
    assert (
        java(sasl_mechanisms="PLAIN", sasl_username="a", sasl_password="b")["sasl.mechanism"]
        == "PLAIN"
    )


def test_a_password_for_another_mechanism_is_refused_without_telling_it():
    with pytest.raises(SettingsError, match=r"sasl\.mechanism='GSSAPI'") as failure:
        java(sasl_mechanism="GSSAPI", sasl_username="ann", sasl_password="s3cret")
    assert "s3cret" not in str(failure.value)


def test_a_login_module_of_ones_own_goes_to_java_alone():
    given = {"sasl_mechanism": "OAUTHBEARER", "sasl_jaas_config": "my.Module required;"}
    assert java(**given)["sasl.jaas.config"] == "my.Module required;"
    assert "sasl.jaas.config" not in client_config(settings(**given))


def test_a_certificate_authority_becomes_a_pem_trust_store():
    given = java(security_protocol="SSL", ssl_ca_location="/ca.pem")
    assert given["ssl.truststore.type"] == "PEM"
    assert given["ssl.truststore.location"] == "/ca.pem"
    assert "ssl.ca.location" not in given


def test_certificate_and_key_become_a_pem_key_store(tmp_path):
    (tmp_path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----")
    (tmp_path / "key.pem").write_text(KEY)
    files = {
        "ssl_certificate_location": str(tmp_path / "cert.pem"),
        "ssl_key_location": str(tmp_path / "key.pem"),
    }
    given = java(**files, ssl_key_password="s3cret")
    assert given["ssl.keystore.type"] == "PEM"
    assert given["ssl.keystore.key"] == KEY
    assert given["ssl.keystore.certificate.chain"] == "-----BEGIN CERTIFICATE-----"
    assert given["ssl.key.password"] == "s3cret"
    assert client_config(settings(**files))["ssl.key.location"] == str(tmp_path / "key.pem")


@pytest.mark.parametrize("content", [None, "-----BEGIN RSA PRIVATE KEY-----\ns3cret"])
def test_a_key_that_java_cannot_read_is_refused_without_telling_it(tmp_path, content):
    if content:
        (tmp_path / "key.pem").write_text(content)
    with pytest.raises(SettingsError, match=r"ssl\.key\.location") as failure:
        java(ssl_key_location=str(tmp_path / "key.pem"))
    assert "s3cret" not in str(failure.value)


def test_host_names_are_left_unchecked_in_each_dialect():
    given = {"ssl_endpoint_identification_algorithm": "none"}
    assert java(**given)["ssl.endpoint.identification.algorithm"] == ""
    assert client_config(settings(**given))["ssl.endpoint.identification.algorithm"] == "none"


def test_other_properties_reach_both():
    assert java(client_id="x")["client.id"] == "x"
    assert client_config(settings(client_id="x"))["client.id"] == "x"


@pytest.mark.parametrize(
    ("said", "turned"),
    [
        ("SASL authentication error: Authentication failed: Invalid username or password", True),
        ("SASL SCRAM-SHA-256 mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported", True),
        ("SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not", True),
        ("error:0A00045C:SSL routines::tlsv13 alert certificate required", True),
        # so does a broker that ends, or a proxy before one that is away
        ("Connect to ipv4#127.0.0.1:9 failed: Connection refused (after 0ms in state CONNECT)", False),
        ("SASL authentication error: SaslAuthenticateRequest failed: Local: Broker transport failure", False),
        ("SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported mechanisms: ", False),
        ("SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener? (after 3ms)", False),
        ("error:0A000126:SSL routines::unexpected eof while reading", False),
        ("Disconnected: verify that security.protocol is correctly configured, broker might require SASL authentication", False),
        ("Disconnected while requesting ApiVersion: might be caused by incorrect security.protocol configuration", False),
    ],
)  # fmt: skip
def test_a_broker_that_turns_its_client_away_is_told_from_one_that_is_away(said, turned):
    said = f"sasl_ssl://127.0.0.1:9092/bootstrap: {said}"
    assert turned_away(["2/2 brokers are down", said]) == (said if turned else "")
