package lakehouse.values;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.DataTypes;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The clock of a time zone, in microseconds, as {@code lakehouse.declare.zones} hands it over: Spark's expressions and the
 * ranges of event time that Python computes go by one table, whatever time zones Java knows.
 */
public final class Clock implements Serializable {
  private static final long serialVersionUID = 1L;
  private final long[] starts; // of each period of one offset
  private final long[] offsets;
  private final long[] latest; // what the clock had shown before the period

  private Clock(byte[] table) {
    long[] values = new long[table.length / Long.BYTES];
    ByteBuffer.wrap(table).asLongBuffer().get(values);
    int periods = values.length / 3;
    starts = java.util.Arrays.copyOfRange(values, 0, periods);
    offsets = java.util.Arrays.copyOfRange(values, periods, 2 * periods);
    latest = java.util.Arrays.copyOfRange(values, 2 * periods, 3 * periods);
  }

  /** The latest time that the clock has shown by an instant. */
  public static Column asShown(byte[] table, Column instant) {
    return call(table, "shown", instant);
  }

  /** The first instant at which the clock has shown a time or a later one. */
  public static Column asReached(byte[] table, Column time) {
    return call(table, "reached", time);
  }

  private static Column call(byte[] table, String method, Column argument) {
    Expression target = Literal.fromObject(new Clock(table));
    List<Expression> arguments = List.of(ExpressionUtils.expression(argument));
    return ExpressionUtils.column(
        new Invoke(target, method, DataTypes.LongType, CollectionConverters.asScala(arguments).toSeq(),
            CollectionConverters.asScala(List.<org.apache.spark.sql.types.AbstractDataType>of()).toSeq(), true, false, true));
  }

  public long shown(long instant) {
    int period = below(starts, instant + 1) - 1;
    return Math.max(instant + offsets[period], latest[period]);
  }

  public long reached(long time) {
    int period = below(latest, time) - 1;
    return Math.max(starts[period], time - offsets[period]);
  }

  /** How many of the ascending values lie below another one. */
  private static int below(long[] values, long value) {
    int low = 0;
    int high = values.length;
    while (low < high) {
      int middle = (low + high) >>> 1;
      if (values[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
