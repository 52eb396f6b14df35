package lakehouse.values;

import com.fasterxml.jackson.core.JsonToken;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.types.VariantType;
import org.apache.spark.unsafe.types.UTF8String;

/** What most messages are, read from their bytes at a third of a parser's cost: one object of texts and numbers, in ASCII and
 * without an escape. Whatever else comes, and whatever is refused, is left to the parser. */
final class Flat {
  private static final int NONE = -1;
  private final byte[] text;
  private int at;

  private Flat(byte[] text) {
    this.text = text;
  }

  /** The values of an object and, last, a null, as `Json.row` has them; null if the parser is to read it. */
  static Object[] row(byte[] text, Json.Struct columns) {
    return new Flat(text).object(columns);
  }

  private Object[] object(Json.Struct columns) {
    if (sign() != '{') return null;
    at++;
    Object[] values = new Object[columns.kinds.length + 1];
    long seen = 0;
    int next = 0; // fields mostly come in the order of their columns
    int sign = ',';
    while (sign == ',') {
      if (sign() != '"') return null;
      int begin = at + 1;
      int end = endOfText();
      if (end < 0 || end - begin > Json.Struct.LONGEST_NAME || sign() != ':') return null;
      int place = columns.place(text, begin, end, next);
      at++;
      if (place == NONE) {
        if (!skipped()) return null;
      } else {
        if (place >= Long.SIZE || (seen & 1L << place) != 0) return null;
        seen |= 1L << place;
        next = place + 1;
        if ((values[place] = value(columns.kinds[place])) == null) return null;
      }
      sign = sign();
      at++;
    }
    return sign == '}' && sign() == NONE ? values : null;
  }

  private boolean skipped() {
    return sign() == '"' ? endOfText() >= 0 : number() != null;
  }

  /** The value as that kind; null if it is none, or not read here. */
  private Object value(Json.Kind kind) {
    JsonToken token = JsonToken.VALUE_STRING;
    int begin;
    int end;
    if (sign() == '"') {
      begin = at + 1;
      end = endOfText();
      if (end < 0) return null;
    } else {
      begin = at;
      token = number();
      if (token == null) return null;
      end = at;
    }
    if (kind instanceof Json.Text) return UTF8String.fromBytes(text, begin, end - begin);
    if (!(kind instanceof Json.Scalar scalar) || kind.type instanceof VariantType) return null;
    return scalar.of(token, new String(text, begin, end - begin, StandardCharsets.ISO_8859_1));
  }

  /** The next byte that is no blank, where it is then; less than 0 at the end. */
  private int sign() {
    while (at < text.length) {
      byte sign = text[at];
      if (sign != ' ' && sign != '\n' && sign != '\r' && sign != '\t') return sign < 0 ? 0 : sign;
      at++;
    }
    return NONE;
  }

  /** Where the text ends whose quote is next, and goes behind it; less than 0 if it has more than plain ASCII. */
  private int endOfText() {
    for (int end = at + 1; end < text.length; end++) {
      byte sign = text[end];
      if (sign == '"') {
        at = end + 1;
        return end;
      }
      if (sign < ' ' || sign == '\\') return NONE;
    }
    return NONE;
  }

  /** Goes behind a number, and says what it is; null if none is next. */
  private JsonToken number() {
    if (is('-')) at++;
    int first = at;
    if (!digits() || (text[first] == '0' && at > first + 1)) return null;
    JsonToken token = JsonToken.VALUE_NUMBER_INT;
    if (is('.')) {
      token = JsonToken.VALUE_NUMBER_FLOAT;
      at++;
      if (!digits()) return null;
    }
    if (is('e') || is('E')) {
      token = JsonToken.VALUE_NUMBER_FLOAT;
      at++;
      if (is('+') || is('-')) at++;
      if (!digits()) return null;
    }
    return token;
  }

  private boolean is(char sign) {
    return at < text.length && text[at] == sign;
  }

  private boolean digits() {
    int first = at;
    while (at < text.length && text[at] >= '0' && text[at] <= '9') at++;
    return at > first;
  }
}
