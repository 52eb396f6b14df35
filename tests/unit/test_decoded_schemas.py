"""Schemas of a registry: asked over HTTP, kept, and compared with declared types."""

import pyarrow as pa
import pytest

from lakehouse import kafka
from lakehouse.declare.catalog import catalog_of
from lakehouse.errors import DeclarationError, RegistryAway, SettingsError
from lakehouse.examples.sensors import tables
from lakehouse.runtime.protobuf import split
from lakehouse.runtime.schema_registry import Registry, registry
from lakehouse.settings import Settings, from_environment
from lakehouse.storage.disk import layout
from lakehouse.storage.position.schemas import Schema, keep, kept
from lakehouse.transform.decoding.schemas import ids_of
from support.schema_registry import framed, served


def test_it_is_asked_with_the_credentials_of_the_settings():
    with served() as known:
        known.register(1, "string", "a b/c-value")
        known.register(2, {"type": "object"}, schemaType="JSON")
        known.register(3, "outer", references=[{"name": "inner"}], resolved='"both"')
        user = Registry(known.url, {"basic.auth.user.info": "ann:s3cret"})
        assert user.schema(1) == user.newest("a b/c-value") == Schema(1, "AVRO", '"string"')
        assert user.schema(2) == Schema(2, "JSON", '{"type": "object"}')
        assert user.schema(3) == Schema(3, "AVRO", '"both"')
        assert user.schema(1 << 31) is None and len(known.asked) == 5, "it is no id"
        assert user.schema(4) is None and user.newest("none-value") is None
        assert known.asked[0] == ("/schemas/ids/1", "Basic YW5uOnMzY3JldA==")
        assert known.asked[1][0] == "/subjects/a%20b%2Fc-value/versions/latest"
        Registry(known.url, {"bearer.auth.token": "t"}).schema(1)
        assert known.asked[-1][1] == "Bearer t"
        known.away = True
        with pytest.raises(RegistryAway, match=r"registry=http://.*/schemas/ids/1: .*HTTP 503"):
            user.schema(1)
        known.away, known.breaks_off = False, True
        for number in (1, 4):
            with pytest.raises(RegistryAway, match=r"IncompleteRead|HTTP 404"):
                user.schema(number)
    with pytest.raises(RegistryAway, match="Connection refused"):
        user.schema(1)


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "file:///etc", "http://ann:s3cret@host"])
def test_an_address_that_cannot_be_asked_is_refused_and_not_repeated(url):
    with pytest.raises(SettingsError, match="BASIC_AUTH_USER_INFO") as refused:
        registry(Settings(registry={"url": url}))
    assert url not in str(refused.value)


def test_settings_name_it_and_do_not_show_its_secrets():
    given = {"URL": "http://a:1", "BASIC_AUTH_USER_INFO": "ann:s3cret", "SSL_CA_LOCATION": "/ca"}
    settings = from_environment(
        {f"LAKEHOUSE_REGISTRY_{name}": text for name, text in given.items()}
    )
    assert settings.registry["basic.auth.user.info"] == "ann:s3cret"
    assert settings.registry["url"] == "http://a:1"
    assert "s3cret" not in f"{settings}"
    with pytest.raises(SettingsError, match="set LAKEHOUSE_REGISTRY_URL"):
        registry(Settings())


def test_a_schema_of_protobuf_comes_with_all_that_it_refers_to():
    a, b = ({"name": f"{n}.proto", "subject": f"of/{n}", "version": 1} for n in "ab")
    with served() as known:
        known.register(1, "a text", "of/a", schemaType="PROTOBUF", references=[b])
        known.register(3, "own text", "t-value", schemaType="PROTOBUF", references=[a, b])
        asked = Registry(known.url, {})
        assert asked.schema(3) is None, "it refers to what the registry does not know"
        known.register(2, "b text", "of/b", schemaType="PROTOBUF")
        imports = (("a.proto", "a text"), ("b.proto", "b text"))
        assert (
            asked.schema(3) == asked.newest("t-value") == Schema(3, "PROTOBUF", "own text", imports)
        )
        assert known.asked[-1][0] == "/subjects/of%2Fa/versions/1"


FOREIGN = {
    "<html>welcome</html>": "<html>welcome</html>",
    '["t-value"]': "t-value",
    '{"id": 1}': "'schema'",
    '{"schema": "a", "id": "one"}': "'id'",
    '{"schema": "a", "id": 1, "schemaType": "PROTOBUF", "references": [{"name": "b"}]}': "references",
}


@pytest.mark.parametrize("content", FOREIGN)
def test_an_answer_that_is_no_registrys_is_said_with_what_was_expected(content: str):
    with served() as known:
        known.foreign = content
        with pytest.raises(RegistryAway) as told:
            Registry(known.url, {}).newest("t-value")
    said = str(told.value)
    assert f"registry={known.url}, /subjects/t-value/versions/latest: " in said
    assert FOREIGN[content] in said and "'schema', 'id'" in said


def test_schemas_are_kept_whatever_a_crash_left(tmp_path):
    settings = Settings(root=tmp_path)
    table = catalog_of([tables]).table("sensor_readings")
    assert kept(settings, table) == {}
    keep(settings, table, Schema(1, "AVRO", "{}"))
    path = layout.note(settings, table, "schemas.jsonl")
    path.write_text(path.read_text() + '{"id": 2, "ty')
    third = Schema(3, "PROTOBUF", "message", (("a.proto", "text"),))
    keep(settings, table, third)
    assert set(kept(settings, table)) == {1, 3} and kept(settings, table)[3] == third


def test_ids_are_those_of_values_that_begin_with_one():
    values = [
        framed(1, b"x"),
        framed(1, b""),
        framed(1 << 31, b""),
        b"\0\0\0\0",
        b"\1\0\0\0\1",
        None,
    ]
    assert ids_of(pa.table({"value": pa.array(values, pa.binary())})) == {1, 1 << 31}
    assert ids_of(pa.table({"value": pa.array([], pa.binary())})) == set()


def test_the_index_of_a_message_is_read_in_its_short_form_and_in_several_bytes():
    assert split(b"\0rest") == ((0,), b"rest")
    assert split(b"\4\x80\1\2rest") == ((64, 1), b"rest")
    for cut in (b"", b"\2", b"\4\0", b"\2\x80", b"\1\0", b"\x80" * 6 + b"\1"):
        with pytest.raises(ValueError, match="no message index"):
            split(cut)


def test_a_key_is_text_beside_avro_and_text_has_none():
    assert kafka("t", format="avro", schema="id STRING, n INT", key="id").of_registry
    assert kafka("t", format="protobuf", schema="id STRING, n INT", key="id").of_registry
    with pytest.raises(DeclarationError, match="format='thrift': one of json, text, avro"):
        kafka("t", format="thrift", schema="id STRING")
