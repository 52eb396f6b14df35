package lakehouse.plans;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.MonotonicallyIncreasingID;
import org.apache.spark.sql.catalyst.expressions.SparkPartitionID;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Sample;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.BaseSubqueryExec;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.CollectMetricsExec$;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution$;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.exchange.BroadcastExchangeExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.execution.reuse.ReuseExchangeAndSubquery$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractPartialFunction;

/**
 * A physical plan that is made once and run many times, each time over other rows: a run analyses, optimises and plans nothing,
 * compiles no code and starts no job. It is for a few rows, of one partition, in the thread that calls. Rows come and go as
 * Arrow IPC streams.
 */
public final class PreparedPlan {
  private static final ConcurrentHashMap<Integer, byte[]> ROWS = new ConcurrentHashMap<>(); // of an input, while it is run
  private static final AtomicInteger INPUTS = new AtomicInteger();
  private static final AtomicLong TASKS = new AtomicLong(Long.MIN_VALUE / 2); // Spark gives no task of its own such a number
  private static final BufferAllocator ALLOCATOR =
      ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("prepared plans", 0, Long.MAX_VALUE);

  private final int[] inputs;
  private final List<String> refusals = new ArrayList<>();
  private final String analyzed;
  private final Properties properties = new Properties();
  private final SQLConf conf;
  private SparkPlan plan;
  private RDD<InternalRow> rows;
  private VectorSchemaRoot root;
  private ArrowWriter writer;
  private volatile TaskContextImpl running;

  /** A number for a new input. */
  public static int newInput() {
    return INPUTS.incrementAndGet();
  }

  /** The DataFrame of an input, of the columns of `schema`, to make a plan with. */
  public static Dataset<Row> frame(SparkSession session, String schema, int input) {
    Seq<Attribute> output = cast(DataTypeUtils$.MODULE$.toAttributes((StructType) DataType.fromJson(schema)));
    LogicalPlan leaf =
        new LogicalRDD(output, new Input(session.sparkContext(), input), SinglePartition$.MODULE$, empty(), false, Option.empty(),
            session, Option.empty(), Option.empty());
    return Dataset$.MODULE$.ofRows(session, leaf);
  }

  /** Plans `frame`, which was made of these inputs. It may be run if `refusals` is empty. */
  public PreparedPlan(Dataset<?> frame, List<Integer> inputs) {
    this.inputs = inputs.stream().mapToInt(Integer::intValue).toArray();
    SparkSession session = frame.sparkSession();
    analyzed = frame.queryExecution().analyzed().canonicalized().toString();
    checkLogical(frame.queryExecution().analyzed());
    conf = session.sessionState().conf().clone();
    conf.setConfString("spark.sql.datetime.java8API.enabled", "true"); // a java.sql.Timestamp before 1900 depends on the JVM's time zone
    session.withActive(() -> { // whose nodes ask the thread for their session
      prepare(session, frame);
      return null;
    });
  }

  private void prepare(SparkSession session, Dataset<?> frame) {
    // as the session plans, but for plans that adapt as they run, and for exchanges that are used twice
    List<Rule<SparkPlan>> rules = new ArrayList<>();
    for (Rule<SparkPlan> rule : CollectionConverters.asJava(QueryExecution$.MODULE$.preparations(session, Option.empty(), false))) {
      if (!(rule instanceof ReuseExchangeAndSubquery$)) rules.add(rule);
    }
    SparkPlan made =
        QueryExecution$.MODULE$.prepareForExecution(
            CollectionConverters.asScala(rules).toList(), frame.queryExecution().sparkPlan().clone());
    checkPhysical(made);
    if (!refusals.isEmpty()) return;
    // one partition in one process: what Spark would shuffle is read as it comes
    plan = (SparkPlan) made.transformUp(new AbstractPartialFunction<SparkPlan, SparkPlan>() {
      @Override
      public boolean isDefinedAt(SparkPlan node) {
        return node instanceof ShuffleExchangeExec;
      }

      @Override
      public <A extends SparkPlan, B> B applyOrElse(A node, scala.Function1<A, B> other) {
        return node instanceof ShuffleExchangeExec exchange ? cast(new CoalesceExec(1, exchange.child())) : other.apply(node);
      }
    });
    // a task asks its own properties for the session's settings
    CollectionConverters.asJava(session.sessionState().conf().getAllConfs()).forEach((key, value) -> {
      if (key.startsWith("spark.")) properties.setProperty(key, value);
    });
    // projections that operators make for themselves in each run: to compile them costs more than a few rows
    properties.setProperty("spark.sql.codegen.factoryMode", "NO_CODEGEN");
    rows = plan.execute();
    root = VectorSchemaRoot.create(ArrowUtils$.MODULE$.toArrowSchema(frame.schema(), "UTC", true, false), ALLOCATOR);
    writer = ArrowWriter$.MODULE$.create(root);
  }

  /** The analysed plan: another one for the same function says that it is made of something that changes. */
  public String analyzed() {
    return analyzed;
  }

  /** Why a run could give other rows than a plan that is made anew. */
  public List<String> refusals() {
    return refusals;
  }

  private void checkLogical(LogicalPlan node) {
    if (node instanceof Sample && reads(node)) refusals.add("a sample takes the same rows in each run");
    for (Expression expression : CollectionConverters.asJava(node.expressions())) checkExpression(expression);
    for (LogicalPlan child : CollectionConverters.asJava(node.children())) checkLogical(child);
  }

  private void checkExpression(Expression expression) {
    boolean deterministic =
        expression.deterministic() || CollectionConverters.asJava(expression.children()).stream().anyMatch(c -> !c.deterministic());
    boolean positional = expression instanceof MonotonicallyIncreasingID || expression instanceof SparkPartitionID;
    if (!deterministic && !positional) refusals.add("not deterministic: " + expression);
    if (expression.nodePatterns().contains(TreePattern$.MODULE$.CURRENT_LIKE())) refusals.add("the present time: " + expression);
    if (expression instanceof SubqueryExpression subquery) checkLogical(subquery.plan());
    for (Expression child : CollectionConverters.asJava(expression.children())) checkExpression(child);
  }

  /** What Spark computes once for each plan must not be computed of an input. */
  private void checkPhysical(SparkPlan node) {
    boolean once = node instanceof BroadcastExchangeExec || node instanceof InMemoryTableScanExec || node instanceof ReusedExchangeExec;
    if (once && reads(node)) refusals.add(node.nodeName() + " of an input is made once");
    for (SparkPlan subquery : CollectionConverters.asJava(node.subqueries())) {
      if (reads(subquery)) refusals.add("a subquery over an input is computed once");
      checkPhysical(subquery);
    }
    for (SparkPlan child : CollectionConverters.asJava(node.children())) checkPhysical(child);
  }

  /** Whether an input is read below, also where `children` does not lead. */
  private static boolean reads(QueryPlan<?> node) {
    if (node instanceof RDDScanExec scan && scan.rdd() instanceof Input) return true;
    if (node instanceof LogicalRDD leaf && leaf.rdd() instanceof Input) return true;
    if (node instanceof ReusedExchangeExec reused && reads(reused.child())) return true;
    if (node instanceof BaseSubqueryExec subquery && reads(subquery.child())) return true;
    if (node instanceof InMemoryTableScanExec scan && reads(scan.relation().cachedPlan())) return true;
    for (Object subquery : CollectionConverters.asJava(node.subqueries())) if (reads((QueryPlan<?>) subquery)) return true;
    for (Object child : CollectionConverters.asJava(node.children())) if (reads((QueryPlan<?>) child)) return true;
    return false;
  }

  /** Runs the plan over the rows of each input, in the order of the constructor's, and at the instants of `Moment`s. */
  public synchronized byte[] run(List<byte[]> given, List<Integer> moments, List<Number> instants) throws IOException {
    for (int i = 0; i < inputs.length; i++) ROWS.put(inputs[i], given.get(i));
    for (int i = 0; i < moments.size(); i++) Moment.SET.put(moments.get(i), instants.get(i).longValue()); // Python sends small ones as Integer
    plan.resetMetrics();
    Partition[] partitions = rows.partitions();
    long task = TASKS.incrementAndGet();
    SparkEnv env = SparkEnv.get();
    TaskMemoryManager memory = new TaskMemoryManager(env.memoryManager(), task);
    TaskContextImpl context =
        new TaskContextImpl(-1, 0, 0, task, 0, partitions.length, memory, properties, env.metricsSystem(), TaskMetrics.empty(), 1,
            scala.collection.immutable.Map$.MODULE$.empty());
    TaskContext$.MODULE$.setTaskContext(context);
    env.blockManager().registerTask(task); // what is persisted is read by a registered task only
    running = context;
    Throwable failure = null;
    try {
      writer.reset();
      for (Partition partition : partitions) {
        scala.collection.Iterator<InternalRow> iterator = rows.iterator(partition, context);
        while (iterator.hasNext()) writer.write(iterator.next());
      }
      writer.finish();
      return stream(root);
    } catch (Throwable err) {
      failure = err;
      throw err;
    } finally {
      running = null;
      try {
        if (failure != null) context.markTaskFailed(failure);
        context.markTaskCompleted(Option.apply(failure));
      } finally {
        memory.cleanUpAllAllocatedMemory();
        env.blockManager().releaseAllLocksForTask(task);
        TaskContext$.MODULE$.unset();
        for (int input : inputs) ROWS.remove(input);
        for (int moment : moments) Moment.SET.remove(moment);
      }
    }
  }

  /** Ends a run under way in another thread, where it looks: Python workers are ended. */
  public void interrupt() {
    TaskContextImpl context = running;
    if (context != null) context.markInterrupted("stopped");
  }

  /** What was observed in the last run: a JSON object by the name of the observation, instants as {"micros": n}. */
  public String observed() {
    StringBuilder json = new StringBuilder("{");
    scala.collection.Map<String, Row> rows = SQLConf$.MODULE$.withExistingConf(conf, () -> CollectMetricsExec$.MODULE$.collect(plan));
    CollectionConverters.asJava(rows).forEach((name, row) -> {
      json.append(json.length() > 1 ? "," : "").append(quoted(name)).append(":{");
      for (int i = 0; i < row.length(); i++) {
        json.append(i > 0 ? "," : "").append(quoted(row.schema().fieldNames()[i])).append(":").append(value(row.get(i)));
      }
      json.append("}");
    });
    return json.append("}").toString();
  }

  private static String value(Object value) {
    if (value == null || value instanceof Number || value instanceof Boolean) return String.valueOf(value);
    if (value instanceof Instant instant) {
      return "{\"micros\":" + (instant.getEpochSecond() * 1_000_000 + instant.getNano() / 1000) + "}";
    }
    return quoted(value.toString());
  }

  private static String quoted(String text) {
    return '"' + new String(com.fasterxml.jackson.core.io.JsonStringEncoder.getInstance().quoteAsString(text)) + '"';
  }

  /** Arrow's memory that all plans hold, in bytes. */
  public static long held() {
    return ALLOCATOR.getAllocatedMemory();
  }

  public synchronized void close() {
    if (root != null) root.close();
    root = null;
  }

  private static byte[] stream(VectorSchemaRoot root) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(1 << 15);
    try (ArrowStreamWriter stream = new ArrowStreamWriter(root, null, Channels.newChannel(bytes))) {
      stream.start();
      stream.writeBatch();
      stream.end();
    }
    return bytes.toByteArray();
  }

  @SuppressWarnings("unchecked")
  private static <T> T cast(Object value) {
    return (T) value;
  }

  private static <T> Seq<T> empty() {
    return CollectionConverters.asScala(new ArrayList<T>()).toList();
  }

  /** The rows that are bound to an input when it is read. */
  private static final class Input extends RDD<InternalRow> {
    private final int input;

    Input(SparkContext context, int input) {
      super(context, empty(), ClassTag$.MODULE$.apply(InternalRow.class));
      this.input = input;
    }

    @Override
    public Partition[] getPartitions() {
      return new Partition[] {() -> 0};
    }

    @Override
    public scala.collection.Iterator<InternalRow> compute(Partition partition, TaskContext context) {
      byte[] bytes = ROWS.get(input);
      if (bytes == null) throw new IllegalStateException("the function runs an action: it has no rows while its plan is made");
      ArrowStreamReader reader = new ArrowStreamReader(new ByteArrayInputStream(bytes), ALLOCATOR);
      context.addTaskCompletionListener(done -> {
        try {
          reader.close();
        } catch (IOException err) {
          throw new UncheckedIOException(err);
        }
      });
      return CollectionConverters.asScala(new Batches(reader));
    }
  }

  private static final class Batches implements java.util.Iterator<InternalRow> {
    private final ArrowStreamReader reader;
    private final VectorSchemaRoot root;
    private final ColumnarBatch batch;
    private java.util.Iterator<InternalRow> rows = java.util.Collections.emptyIterator();

    Batches(ArrowStreamReader reader) {
      try {
        this.reader = reader;
        root = reader.getVectorSchemaRoot();
        batch = new ColumnarBatch(root.getFieldVectors().stream().map(ArrowColumnVector::new).toArray(ColumnVector[]::new));
      } catch (IOException err) {
        throw new UncheckedIOException(err);
      }
    }

    @Override
    public boolean hasNext() {
      try {
        while (!rows.hasNext()) {
          if (!reader.loadNextBatch()) return false;
          batch.setNumRows(root.getRowCount());
          rows = batch.rowIterator();
        }
        return true;
      } catch (IOException err) {
        throw new UncheckedIOException(err);
      }
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) throw new java.util.NoSuchElementException();
      return rows.next();
    }
  }
}
