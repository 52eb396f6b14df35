package lakehouse.values;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonFactoryBuilder;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonStreamContext;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.types.VariantType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantBuilder;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/** A JSON text (RFC 8259) as a value of a type: the whole text is one value, and no field of an object is there twice. */
final class Json {
  private static final int SHOWN = 40; // characters of a value that is refused
  private static final JsonFactory FACTORY =
      new JsonFactoryBuilder()
          .disable(JsonFactory.Feature.INTERN_FIELD_NAMES)
          .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
          .streamReadConstraints(
              StreamReadConstraints.builder().maxNumberLength(Integer.MAX_VALUE).maxStringLength(Integer.MAX_VALUE).build())
          .build();

  private Json() {}

  /** The values of an object and, last, why it is no such row; null if it is. */
  static Object[] row(String text, Struct columns) {
    return whole(text, source -> {
      if (source.token != JsonToken.START_OBJECT) throw new Refused("", "got " + source.shown());
      return columns.readable(source);
    });
  }

  static Object value(String text, Kind kind) {
    return whole(text, source -> source.read(kind));
  }

  private static <T> T whole(String text, Reading<T> reading) {
    try (JsonParser parser = FACTORY.createParser(text)) {
      Source source = new Source(text, parser);
      if (source.next() == null) throw new Refused("", "there is none");
      T value = reading.of(source);
      int end = source.place() + 1;
      try {
        if (source.next() == null) return value;
      } catch (JsonProcessingException garbage) {
        // told as any other second value
      }
      throw new Refused("", "more follows behind it, at character " + (end + 1));
    } catch (JsonProcessingException other) {
      long at = other.getLocation() == null ? 0 : other.getLocation().getCharOffset();
      throw new Refused("", "it is not JSON, at character " + Math.min(at + 1, text.length()) + " of " + text.length());
    } catch (IOException impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  private interface Reading<T> {
    T of(Source source) throws IOException;
  }

  /** A text and where in it a parser is. */
  static final class Source {
    final String text;
    final JsonParser parser;
    final boolean escapes; // whether a text may hold half of a character, which UTF-8 has not
    JsonToken token;

    Source(String text, JsonParser parser) {
      this.text = text;
      this.parser = parser;
      this.escapes = text.contains("\\u");
    }

    JsonToken next() throws IOException {
      token = parser.nextToken();
      return token;
    }

    /** The value of the token; null of null. */
    Object read(Kind kind) throws IOException {
      if (token == JsonToken.VALUE_NULL) return null;
      Object value = kind.of(this);
      if (value == null) throw refused(kind.type, shown());
      return value;
    }

    UTF8String string(String of) {
      for (int at = 0; escapes && at < of.length(); at++) {
        if (Character.isHighSurrogate(of.charAt(at)) && at + 1 < of.length() && Character.isLowSurrogate(of.charAt(at + 1))) at++;
        else if (Character.isSurrogate(of.charAt(at))) throw new Refused("", "half of a character (surrogate) is no text");
      }
      return UTF8String.fromString(of);
    }

    /** The value of the token as it was sent. */
    String raw() throws IOException {
      if (!token.isStructStart()) return parser.getText();
      int begin = place();
      parser.skipChildren();
      return text.substring(begin, place() + 1);
    }

    int place() {
      return (int) parser.currentTokenLocation().getCharOffset();
    }

    String shown() {
      try {
        return switch (parser.currentToken()) {
          case START_OBJECT, END_OBJECT -> "an object";
          case START_ARRAY, END_ARRAY -> "a list";
          case VALUE_STRING -> quoted(parser.getText());
          default -> cut(parser.getText());
        };
      } catch (IOException other) {
        return "no JSON";
      }
    }
  }

  static String quoted(String text) {
    return '"' + cut(text) + '"';
  }

  private static String cut(String text) {
    String shown = text.length() <= SHOWN ? text : text.substring(0, SHOWN) + "…";
    return shown.replaceAll("\\p{Cntrl}", "\uFFFD"); // a reason is one line
  }

  static Refused refused(DataType type, String sent) {
    boolean nested = type instanceof StructType || type instanceof ArrayType || type instanceof MapType;
    return new Refused("", "declared " + (nested ? type.typeName().toUpperCase() : type.sql()) + ", got " + sent);
  }

  static Kind kind(DataType type) {
    if (type instanceof StructType struct) {
      return struct.length() == 2 && struct.apply(0).name().equals(TOKEN) ? new Token(struct) : new Struct(struct, struct.length());
    }
    if (type instanceof ArrayType array) return new Elements(array);
    if (type instanceof MapType map) return new Entries(map);
    return type instanceof StringType ? new Text(type) : new Scalar(type);
  }

  /** How values of a type are read: null if the token is of none. */
  abstract static class Kind {
    final DataType type;

    Kind(DataType type) {
      this.type = type;
    }

    abstract Object of(Source source) throws IOException;
  }

  static final class Text extends Kind {
    Text(DataType type) {
      super(type);
    }

    @Override
    Object of(Source source) throws IOException {
      return source.token == JsonToken.VALUE_STRING ? source.string(source.parser.getText()) : UTF8String.fromString(source.raw());
    }
  }

  static final class Scalar extends Kind {
    Scalar(DataType type) {
      super(type);
    }

    @Override
    Object of(Source source) throws IOException {
      return type instanceof VariantType ? variant(source.raw()) : of(source.token, source.parser.getText());
    }

    /** A token that is neither an object nor a list, by its text. */
    Object of(JsonToken token, String text) {
      switch (token) {
        case VALUE_TRUE, VALUE_FALSE:
          return type instanceof BooleanType ? (Object) (token == JsonToken.VALUE_TRUE) : null;
        case VALUE_STRING:
          boolean named = (type instanceof DoubleType || type instanceof FloatType) && Values.isNamed(text);
          return named || isWritten(type) ? Values.of(text, type) : null;
        case VALUE_NUMBER_INT:
          if (type instanceof TimestampType) return seconds(text);
          if (isNumeric(type)) return Values.of(text, type);
          return type instanceof BooleanType || isWritten(type) ? null : Values.whole(text, type);
        case VALUE_NUMBER_FLOAT:
          return isNumeric(type) ? Values.of(text, type) : null;
        default:
          return null;
      }
    }

    private static Long seconds(String text) {
      Long value = (Long) Values.whole(text, LongType$.MODULE$);
      if (value == null || Math.abs(value) > Values.LAST / 1_000_000) return null;
      return Values.isInstant(value * 1_000_000) ? (Long) (value * 1_000_000) : null;
    }

    private static boolean isNumeric(DataType type) {
      return type instanceof DecimalType || type instanceof DoubleType || type instanceof FloatType;
    }

    /** Whether values of the type are texts in JSON; decimals may be, since many programs have no other exact numbers. */
    private static boolean isWritten(DataType type) {
      return type instanceof DecimalType || type instanceof DateType || type instanceof TimestampType
          || type instanceof TimestampNTZType || type instanceof BinaryType;
    }

    private static VariantVal variant(String json) throws IOException {
      try (JsonParser numbers = FACTORY.createParser(json)) {
        while (numbers.nextToken() != null) {
          if (numbers.currentToken().isNumeric() && !isOfVariant(numbers.getText())) return null;
        }
      }
      try {
        Variant value = VariantBuilder.parseJson(json, false);
        return new VariantVal(value.getValue(), value.getMetadata());
      } catch (RuntimeException other) { // a field twice, or larger than variants are
        return null;
      }
    }

    /** Whether a variant has it as a decimal with all digits, or, of a power of ten, as the nearest floating number. */
    private static boolean isOfVariant(String number) {
      boolean power = number.indexOf('e') >= 0 || number.indexOf('E') >= 0;
      long digits = number.chars().filter(Character::isDigit).count();
      return power ? Values.floating(number) != null : Values.isNumber(number) && digits <= 38;
    }
  }

  static final class Struct extends Kind {
    static final int LONGEST_NAME = 1_000; // of a field in `Flat`; the parser's limit is higher
    private final Map<String, Integer> places = new HashMap<>();
    private final String[] names;
    private final byte[][] sent; // the names as messages have them
    final Kind[] kinds;

    /** Of the first fields of a type. */
    Struct(StructType type, int many) {
      super(type);
      names = new String[many];
      sent = new byte[many][];
      kinds = new Kind[many];
      for (int at = 0; at < many; at++) {
        names[at] = type.apply(at).name();
        sent[at] = names[at].getBytes(StandardCharsets.UTF_8);
        kinds[at] = kind(type.apply(at).dataType());
        places.put(names[at], at);
      }
    }

    /** The place of the field with that name, which is probably the `next` one; less than 0 if it is none of them. */
    int place(byte[] text, int begin, int end, int next) {
      for (int many = 0; many < sent.length; many++) {
        int place = (next + many) % sent.length;
        if (Arrays.equals(sent[place], 0, sent[place].length, text, begin, end)) return place;
      }
      return -1;
    }

    @Override
    Object of(Source source) throws IOException {
      if (source.token != JsonToken.START_OBJECT) return null;
      Object[] values = new Object[kinds.length];
      Refused why = read(source, values);
      if (why != null) throw why;
      return new GenericInternalRow(values);
    }

    /** All values that can be read and, last, why the first of the others cannot: what is quarantined is looked for by them. */
    Object[] readable(Source source) throws IOException {
      Object[] values = new Object[kinds.length + 1];
      Refused why = read(source, values);
      if (why != null) values[kinds.length] = UTF8String.fromString(why.getMessage());
      return values;
    }

    private Refused read(Source source, Object[] values) throws IOException {
      boolean[] seen = new boolean[kinds.length];
      JsonStreamContext object = source.parser.getParsingContext();
      Refused first = null;
      while (source.next() != JsonToken.END_OBJECT) {
        Integer place = places.get(source.parser.currentName());
        source.next();
        if (place == null) {
          source.parser.skipChildren();
          continue;
        }
        try {
          values[place] = null;
          if (seen[place]) throw new Refused("", "it is there twice");
          seen[place] = true;
          values[place] = source.read(kinds[place]);
        } catch (Refused why) {
          if (first == null) first = why.within(names[place]);
          try {
            while (source.parser.getParsingContext() != object) source.next();
          } catch (JsonProcessingException deeper) { // than a parser goes
            throw first;
          }
        }
      }
      return first;
    }
  }

  private static final class Elements extends Kind {
    private final Kind of;

    Elements(ArrayType type) {
      super(type);
      of = kind(type.elementType());
    }

    @Override
    Object of(Source source) throws IOException {
      if (source.token != JsonToken.START_ARRAY) return null;
      List<Object> values = new ArrayList<>();
      while (source.next() != JsonToken.END_ARRAY) {
        try {
          values.add(source.read(of));
        } catch (Refused why) {
          throw why.within("[" + values.size() + "]");
        }
      }
      return new GenericArrayData(values.toArray());
    }
  }

  private static final class Entries extends Kind {
    private final Kind of;

    Entries(MapType type) {
      super(type);
      of = kind(type.valueType());
    }

    @Override
    Object of(Source source) throws IOException {
      if (source.token != JsonToken.START_OBJECT) return null;
      Map<Object, Object> values = new LinkedHashMap<>();
      while (source.next() != JsonToken.END_OBJECT) {
        String name = source.parser.currentName();
        source.next();
        try {
          UTF8String key = source.string(name);
          if (values.containsKey(key)) throw new Refused("", "it is there twice");
          values.put(key, source.read(of));
        } catch (Refused why) {
          throw why.within(name);
        }
      }
      Object[] keys = values.keySet().toArray();
      return new ArrayBasedMapData(new GenericArrayData(keys), new GenericArrayData(values.values().toArray()));
    }
  }

  /** Any value: of what kind it is, and its text as it was sent. */
  private static final class Token extends Kind {
    Token(DataType type) {
      super(type);
    }

    @Override
    Object of(Source source) throws IOException {
      String kind = switch (source.token) {
        case START_OBJECT -> "object";
        case START_ARRAY -> "array";
        case VALUE_STRING -> "text";
        case VALUE_TRUE, VALUE_FALSE -> "boolean";
        default -> "number";
      };
      UTF8String text =
          source.token == JsonToken.VALUE_STRING ? source.string(source.parser.getText()) : UTF8String.fromString(source.raw());
      return new GenericInternalRow(new Object[] {UTF8String.fromString(kind), text});
    }
  }

  /** The first field of the struct that any value is read into; the second is its text. */
  static final String TOKEN = "__lakehouse_token";
}
