package lakehouse.values;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Reads texts as values of declared types, as Spark's expressions call it. Its state is what it was made of, so that several
 * threads may use one.
 */
public final class Reader implements Serializable {
  private static final long serialVersionUID = 1L;
  private final String format;
  private final DataType type;
  private final int columns; // of a row, without its last one: why it is none
  private final Set<String> nulls; // fields of CSV that are null
  private transient volatile Json.Kind kind;

  private Reader(String format, DataType type, int columns, Set<String> nulls) {
    this.format = format;
    this.type = type;
    this.columns = columns;
    this.nulls = nulls;
  }

  /** The struct of a binary value in JSON, or a line of CSV: the columns of `schema`, of which the last says why it is none.
   * The others then hold what can be read. */
  public static Column asRow(String format, String schema, List<String> nulls, Column value) {
    StructType row = (StructType) DataType.fromJson(schema);
    return call(new Reader(format, row, row.length() - 1, Set.copyOf(nulls)), "row", row, true, value);
  }

  /** As `asRow`, of JSON objects one after another: an array of such structs, each with its own bytes and its place, from 0. */
  public static Column asRows(String schema, Column value) {
    StructType row = (StructType) DataType.fromJson(schema);
    return call(new Reader("json", row, row.length() - 3, Set.of()), "rows", new ArrayType(row, false), true, value);
  }

  /** What a text is as a value of a type, by the rules of a line of CSV ("text") or of JSON; null if it is none. */
  public static Column asValue(String format, String type, Column text) {
    DataType wanted = DataType.fromJson(type);
    return call(new Reader(format, wanted, 0, Set.of()), "exact", wanted, true, text);
  }

  /** Has Spark call a method of an object with a column; null of null. `nullable`: whether its result may be null as well. */
  public static Column call(Object target, String method, DataType result, boolean nullable, Column argument) {
    List<Expression> arguments = List.of(ExpressionUtils.expression(argument));
    return ExpressionUtils.column(
        new Invoke(Literal.fromObject(target), method, result, CollectionConverters.asScala(arguments).toSeq(),
            CollectionConverters.asScala(List.<org.apache.spark.sql.types.AbstractDataType>of()).toSeq(), true, nullable, true));
  }

  public InternalRow row(byte[] value) {
    return new GenericInternalRow(values(value));
  }

  public ArrayData rows(byte[] value) {
    List<Object> rows = new ArrayList<>();
    for (byte[] object : Concatenated.objects(value)) {
      Object[] fields = Arrays.copyOf(values(object), columns + 3);
      fields[columns + 1] = object;
      fields[columns + 2] = rows.size();
      rows.add(new GenericInternalRow(fields));
    }
    return new GenericArrayData(rows.toArray());
  }

  private Object[] values(byte[] value) {
    Object[] plain = format.equals("json") ? Flat.row(value, (Json.Struct) kind()) : null;
    if (plain != null) return plain;
    try {
      String text = new String(value, StandardCharsets.UTF_8);
      // what is no UTF-8 has become this character
      if (text.indexOf('\uFFFD') >= 0 && !UTF8String.fromBytes(value).isValid()) throw new Refused("", "it is not UTF-8");
      return format.equals("csv") ? line(text) : Json.row(text, (Json.Struct) kind());
    } catch (Refused why) {
      Object[] fields = new Object[columns + 1];
      fields[columns] = UTF8String.fromString(why.getMessage());
      return fields;
    }
  }

  public Object exact(UTF8String text) {
    try {
      return format.equals("json") ? Json.value(text.toString(), kind()) : Values.of(text.toString(), type);
    } catch (Refused why) {
      return null;
    }
  }

  private Json.Kind kind() {
    Json.Kind made = kind;
    if (made == null) {
      made = columns > 0 ? new Json.Struct((StructType) type, columns) : Json.kind(type);
      kind = made;
    }
    return made;
  }

  private Object[] line(String text) {
    StructType row = (StructType) type;
    List<String> sent = fields(text);
    if (sent.size() != columns) throw new Refused("", "it has " + sent.size() + " fields, and " + columns + " are declared");
    Object[] values = new Object[columns + 1];
    for (int at = 0; at < columns; at++) {
      String field = sent.get(at);
      if (nulls.contains(field)) continue;
      DataType of = row.apply(at).dataType();
      // there are no bytes in a line of text but its own
      values[at] = of instanceof org.apache.spark.sql.types.BinaryType ? field.getBytes(StandardCharsets.UTF_8) : Values.of(field, of);
      if (values[at] != null || values[columns] != null) continue;
      values[columns] = UTF8String.fromString(Json.refused(of, Json.quoted(field)).within(row.apply(at).name()).getMessage());
    }
    return values;
  }

  /** The fields of a line as RFC 4180 has them. */
  private static List<String> fields(String line) {
    List<String> found = new ArrayList<>();
    int at = 0;
    while (true) {
      int end;
      String field;
      if (at < line.length() && line.charAt(at) == '"') {
        StringBuilder quoted = new StringBuilder();
        end = at + 1;
        while (true) {
          int quote = line.indexOf('"', end);
          if (quote < 0) throw new Refused("", "a quote does not end");
          quoted.append(line, end, quote);
          end = quote + 1;
          if (end == line.length() || line.charAt(end) != '"') break;
          quoted.append('"');
          end++;
        }
        if (end < line.length() && line.charAt(end) != ',') {
          throw new Refused("", "something follows a quote that ends, in field " + (found.size() + 1));
        }
        field = quoted.toString();
      } else {
        int comma = line.indexOf(',', at);
        end = comma < 0 ? line.length() : comma;
        field = line.substring(at, end);
      }
      found.add(field);
      if (end == line.length()) return found;
      at = end + 1;
    }
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Reader that && format.equals(that.format) && type.equals(that.type) && columns == that.columns
        && nulls.equals(that.nulls);
  }

  @Override
  public int hashCode() {
    return 31 * format.hashCode() + type.hashCode();
  }

  @Override
  public String toString() {
    return "reader(" + format + ", " + type.catalogString() + ")";
  }
}
