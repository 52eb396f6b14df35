package lakehouse.values;

import java.math.BigDecimal;
import java.time.LocalDate;
import java.time.YearMonth;
import java.util.Base64;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/** What a text is as a value of a type: exactly what it says, or null. Nothing is rounded, completed or guessed. */
final class Values {
  static final long FIRST = -62_135_596_800_000_000L; // microseconds: the years 1 to 9999
  static final long LAST = 253_402_300_799_999_999L;
  private static final long SECOND = 1_000_000L;
  private static final int LONGEST = 1_000; // characters of a number: longer ones take seconds to compute with

  private Values() {}

  /** A text that stands alone, as in a field of CSV. */
  static Object of(String text, DataType type) {
    if (type instanceof StringType) return UTF8String.fromString(text);
    if (type instanceof BooleanType) {
      return text.equalsIgnoreCase("true") ? Boolean.TRUE : text.equalsIgnoreCase("false") ? Boolean.FALSE : null;
    }
    if (type instanceof DecimalType decimal) return decimal(text, decimal);
    if (type instanceof DoubleType) return isNamed(text) ? (Double) named(text) : floating(text);
    if (type instanceof FloatType) return isNamed(text) ? (Float) (float) named(text) : single(text);
    if (type instanceof DateType) return text.length() == 10 ? date(text) : null;
    if (type instanceof TimestampType) return instant(text, true);
    if (type instanceof TimestampNTZType) return instant(text, false);
    if (type instanceof BinaryType) return bytes(text);
    return isWhole(text) ? whole(text, type) : null;
  }

  /** A text of the grammar of whole numbers, in the range of the type. */
  static Object whole(String text, DataType type) {
    try {
      return inRange(Long.parseLong(text), type);
    } catch (NumberFormatException tooLarge) {
      return null;
    }
  }

  static Object inRange(long value, DataType type) {
    if (type instanceof LongType) return value;
    if (type instanceof IntegerType) return value == (int) value ? (Object) (int) value : null;
    if (type instanceof ShortType) return value == (short) value ? (Object) (short) value : null;
    if (type instanceof ByteType) return value == (byte) value ? (Object) (byte) value : null;
    throw new IllegalArgumentException(type.sql());
  }

  static boolean isWhole(String text) {
    int from = isSigned(text) ? 1 : 0;
    return from < text.length() && digitsFrom(text, from) == text.length();
  }

  /** Whether it is a decimal number: a sign, digits with a point, a power of ten; no blanks, separators or suffixes. */
  static boolean isNumber(String text) {
    int from = isSigned(text) ? 1 : 0;
    int at = digitsFrom(text, from);
    int digits = at - from;
    if (at < text.length() && text.charAt(at) == '.') {
      int end = digitsFrom(text, at + 1);
      digits += end - at - 1;
      at = end;
    }
    if (digits == 0) return false;
    if (at == text.length()) return true;
    if (text.charAt(at) != 'e' && text.charAt(at) != 'E') return false;
    at++;
    if (at < text.length() && (text.charAt(at) == '-' || text.charAt(at) == '+')) at++;
    return at < text.length() && digitsFrom(text, at) == text.length();
  }

  private static boolean isSigned(String text) {
    return !text.isEmpty() && (text.charAt(0) == '-' || text.charAt(0) == '+');
  }

  private static int digitsFrom(String text, int from) {
    int at = from;
    while (at < text.length() && isDigit(text.charAt(at))) at++;
    return at;
  }

  private static boolean isDigit(char of) {
    return of >= '0' && of <= '9';
  }

  /** A number that the type holds with all of its digits. */
  static Decimal decimal(String text, DecimalType type) {
    if (text.length() > LONGEST || !isNumber(text)) return null;
    BigDecimal value;
    try {
      value = new BigDecimal(text);
    } catch (NumberFormatException | ArithmeticException power) {
      return null;
    }
    if (value.signum() == 0) value = BigDecimal.ZERO;
    if (value.scale() > type.scale()) value = value.stripTrailingZeros();
    long before = (long) value.precision() - value.scale(); // digits before the point
    if (value.scale() > type.scale() || (value.signum() != 0 && before > type.precision() - type.scale())) return null;
    value = value.setScale(type.scale());
    return type.precision() <= Decimal.MAX_LONG_DIGITS()
        ? Decimal.createUnsafe(value.unscaledValue().longValueExact(), type.precision(), type.scale())
        : Decimal.apply(value, type.precision(), type.scale());
  }

  /** The nearest number; none of what is larger than all, or so small that nothing would be left of it. */
  static Double floating(String text) {
    if (!isNumber(text) || text.length() > LONGEST) return null;
    double value = Double.parseDouble(text);
    return Double.isInfinite(value) || (value == 0 && !isZero(text)) ? null : (Double) value;
  }

  static Float single(String text) {
    if (!isNumber(text) || text.length() > LONGEST) return null;
    float value = Float.parseFloat(text);
    return Float.isInfinite(value) || (value == 0 && !isZero(text)) ? null : (Float) value;
  }

  private static boolean isZero(String number) {
    for (int at = 0; at < number.length(); at++) {
      char of = number.charAt(at);
      if (of == 'e' || of == 'E') return true;
      if (of >= '1' && of <= '9') return false;
    }
    return true;
  }

  /** Whether it names one of the three values that floating numbers have beside numbers. */
  static boolean isNamed(String text) {
    return switch (text) {
      case "NaN", "Infinity", "-Infinity", "Inf", "-Inf" -> true;
      default -> false;
    };
  }

  static double named(String text) {
    if (text.equals("NaN")) return Double.NaN;
    return text.startsWith("-") ? Double.NEGATIVE_INFINITY : Double.POSITIVE_INFINITY;
  }

  /** Base64 with its padding, as an encoder writes it. */
  static byte[] bytes(String text) {
    try {
      byte[] value = Base64.getDecoder().decode(text);
      return Base64.getEncoder().encodeToString(value).equals(text) ? value : null;
    } catch (IllegalArgumentException other) {
      return null;
    }
  }

  /** The day of the first ten characters, as in 2026-01-31, in days since 1970. */
  static Integer date(String text) {
    if (text.length() < 10 || text.charAt(4) != '-' || text.charAt(7) != '-') return null;
    int year = number(text, 0, 4);
    int month = number(text, 5, 7);
    int day = number(text, 8, 10);
    if (year < 1 || month < 1 || month > 12 || day < 1) return null;
    if (day > 28 && day > YearMonth.of(year, month).lengthOfMonth()) return null;
    return (int) LocalDate.of(year, month, day).toEpochDay();
  }

  /** A date, or a date and a time of day with at most six digits behind the second; in microseconds since 1970. */
  static Long instant(String text, boolean zoned) {
    Integer day = date(text);
    if (day == null) return null;
    int end = text.length();
    if (end == 10) return day * 86_400 * SECOND;
    if (end < 16 || (text.charAt(10) != 'T' && text.charAt(10) != ' ') || text.charAt(13) != ':') return null;
    int hour = number(text, 11, 13);
    int minute = number(text, 14, 16);
    int second = 0;
    long fraction = 0;
    int at = 16;
    if (at < end && text.charAt(at) == ':') {
      if (end < 19) return null;
      second = number(text, 17, 19);
      at = 19;
      if (at < end && text.charAt(at) == '.') {
        int from = at + 1;
        at = digitsFrom(text, from);
        if (at == from) return null;
        for (int digit = 0; digit < Math.max(6, at - from); digit++) {
          int value = from + digit < at ? text.charAt(from + digit) - '0' : 0;
          if (digit < 6) fraction = fraction * 10 + value;
          else if (value != 0) return null;
        }
      }
    }
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return null;
    int offset = at == end ? 0 : zoned ? offset(text.substring(at)) : Integer.MIN_VALUE;
    if (offset == Integer.MIN_VALUE) return null;
    long micros = ((day * 24L + hour) * 60 + minute - offset) * 60 * SECOND + second * SECOND + fraction;
    return isInstant(micros) ? (Long) micros : null;
  }

  static boolean isInstant(long micros) {
    return micros >= FIRST && micros <= LAST;
  }

  /** Minutes ahead of UTC; the least number if it is no such offset. */
  private static int offset(String zone) {
    String name = zone.charAt(0) == ' ' ? zone.substring(1) : zone;
    if (name.equals("Z") || name.equals("UTC") || name.equals("GMT")) return 0;
    int length = name.length();
    boolean signed = length > 0 && (name.charAt(0) == '+' || name.charAt(0) == '-');
    boolean colon = length == 6 && name.charAt(3) == ':';
    if (!signed || (length != 3 && length != 5 && !colon)) return Integer.MIN_VALUE;
    int hours = number(name, 1, 3);
    int minutes = length == 3 ? 0 : number(name, length - 2, length);
    if (hours < 0 || minutes < 0 || minutes > 59 || hours * 60 + minutes > 18 * 60) return Integer.MIN_VALUE;
    return (name.charAt(0) == '-' ? -1 : 1) * (hours * 60 + minutes);
  }

  /** The number of these digits; less than 0 if there is anything else among them. */
  private static int number(String text, int from, int to) {
    int value = 0;
    for (int at = from; at < to; at++) {
      if (!isDigit(text.charAt(at))) return -1;
      value = value * 10 + text.charAt(at) - '0';
    }
    return value;
  }
}
