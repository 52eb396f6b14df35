package lakehouse.plans;

import java.io.Serializable;
import java.util.concurrent.ConcurrentHashMap;
import lakehouse.values.Reader;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.types.DataTypes;

/** An instant that is another one in each run of a prepared plan. */
public final class Moment implements Serializable {
  private static final long serialVersionUID = 1L;
  static final ConcurrentHashMap<Integer, Long> SET = new ConcurrentHashMap<>(); // in microseconds, while a plan runs

  private final int number;

  private Moment(int number) {
    this.number = number;
  }

  /** The instant as a column. `row`: any BIGINT that each row has, without which Spark would compute it once. */
  public static Column column(int number, Column row) {
    return Reader.call(new Moment(number), "micros", DataTypes.TimestampType, false, row);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Moment moment && moment.number == number;
  }

  /** Spark orders the parts of a condition by it: the same plan, made again, must be the same. */
  @Override
  public int hashCode() {
    return number;
  }

  @Override
  public String toString() {
    return "Moment(" + number + ")";
  }

  public long micros(long row) {
    Long micros = SET.get(number);
    if (micros == null) throw new IllegalStateException("the function runs an action: no instant is set while its plan is made");
    return micros;
  }
}
