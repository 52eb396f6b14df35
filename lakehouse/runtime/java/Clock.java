package lakehouse.values;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.types.DataTypes;

/**
 * The clock of a time zone, in microseconds, as {@code lakehouse.declare.windows} hands it over: Spark's expressions and the
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
    starts = Arrays.copyOfRange(values, 0, periods);
    offsets = Arrays.copyOfRange(values, periods, 2 * periods);
    latest = Arrays.copyOfRange(values, 2 * periods, 3 * periods);
  }

  /** The latest time that the clock has shown by an instant. */
  public static Column asShown(byte[] table, Column instant) {
    return Reader.call(new Clock(table), "shown", DataTypes.LongType, false, instant);
  }

  /** The first instant at which the clock has shown a time or a later one. */
  public static Column asReached(byte[] table, Column time) {
    return Reader.call(new Clock(table), "reached", DataTypes.LongType, false, time);
  }

  @Override
  public String toString() {
    return "Clock(" + Arrays.hashCode(starts) + ", " + Arrays.hashCode(offsets) + ")";
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
