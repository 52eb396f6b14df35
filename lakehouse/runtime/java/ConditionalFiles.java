package lakehouse.objects;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Files that the first of several writers makes, and that no rename moves, in a Hadoop file system with conditional creation (S3A).
 *
 * <p>A store's answer may be lost after it has written the object, and the client's own next attempt is then refused. So each
 * writer names itself in the object, and looks there before it calls a refusal a conflict.
 */
public final class ConditionalFiles {
  private static final String WRITER = "writer";

  private ConditionalFiles() {}

  private static FSDataOutputStream created(FileSystem files, Path path, String writer) throws IOException {
    return (FSDataOutputStream)
        files
            .createFile(path)
            .recursive()
            .overwrite(false)
            .must("fs.option.create.conditional.overwrite", true)
            .opt("fs.s3a.create.header.x-amz-meta-" + WRITER, writer)
            .build();
  }

  /** Closes the stream, which writes the object. Returns false if another writer was first. */
  private static boolean closed(FileSystem files, Path path, FSDataOutputStream out, String writer) throws IOException {
    try {
      out.close();
      return true;
    } catch (IOException failed) {
      try {
        files.getFileStatus(path);
      } catch (FileNotFoundException none) {
        throw failed; // nothing was written, so it is no conflict
      }
      byte[] who = null;
      for (String name : new String[] {"header.x-amz-meta-" + WRITER, "header." + WRITER}) {
        try {
          who = who == null ? files.getXAttr(path, name) : who;
        } catch (IOException | UnsupportedOperationException none) {
          who = null; // another kind of writer names itself elsewhere
        }
      }
      return who != null && writer.equals(new String(who, StandardCharsets.UTF_8));
    }
  }

  /** The log of Delta tables: the second of two writers of a version is refused. */
  public static final class DeltaLog extends HadoopFileSystemLogStore {
    public DeltaLog(Configuration configuration) {
      super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration) throws IOException {
      FileSystem files = path.getFileSystem(configuration);
      String writer = UUID.randomUUID().toString();
      FSDataOutputStream out = overwrite ? files.create(path, true) : created(files, path, writer);
      while (actions.hasNext()) {
        out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
      if (overwrite) {
        out.close();
      } else if (!closed(files, path, out, writer)) {
        throw new java.nio.file.FileAlreadyExistsException(path.toString());
      }
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
      return false;
    }
  }

  /**
   * The checkpoints of Spark's queries: the second of two processes that write one micro-batch is refused.
   *
   * <p>Spark has one such class for all file systems. One that is not S3A, as of a query with a checkpoint on a disk, has Spark's.
   */
  public static final class Checkpoints implements CheckpointFileManager {
    private final FileSystem files;
    private final Path folder;
    private final CheckpointFileManager elsewhere;

    public Checkpoints(Path path, Configuration configuration) throws IOException {
      files = path.getFileSystem(configuration);
      folder = path;
      elsewhere =
          files.getScheme().equals("s3a") ? null : new FileSystemBasedCheckpointFileManager(path, configuration);
    }

    @Override
    public CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
      if (elsewhere != null) {
        return elsewhere.createAtomic(path, overwrite);
      }
      String writer = UUID.randomUUID().toString();
      FSDataOutputStream object =
          io(() -> overwrite ? files.create(path, true) : created(files, path, writer));
      return new CancellableFSDataOutputStream(object) {
        private boolean ended;

        @Override
        public synchronized void close() throws IOException {
          if (ended) {
            return;
          }
          ended = true;
          if (overwrite) {
            object.close();
          } else if (!closed(files, path, object, writer)) {
            throw new FileAlreadyExistsException(path + ": another process has written it");
          }
        }

        @Override
        public synchronized void cancel() {
          if (!ended) {
            ended = true;
            object.abort();
          }
        }
      };
    }

    @Override
    public FSDataInputStream open(Path path) {
      return io(() -> files.open(path));
    }

    @Override
    public FileStatus[] list(Path path, PathFilter filter) {
      return io(
          () -> {
            try {
              return files.listStatus(path, filter);
            } catch (FileNotFoundException none) {
              if (elsewhere != null) {
                throw none;
              }
              return new FileStatus[0]; // a folder without a file, which a store does not have
            }
          });
    }

    /** In a store a folder is there with its first file. An object that stands for one would outlive its files. */
    @Override
    public void mkdirs(Path path) {
      if (elsewhere != null) {
        elsewhere.mkdirs(path);
      }
    }

    @Override
    public boolean exists(Path path) {
      return io(() -> files.exists(path));
    }

    @Override
    public void delete(Path path) {
      io(() -> files.delete(path, true));
    }

    @Override
    public boolean isLocal() {
      return elsewhere != null && elsewhere.isLocal();
    }

    @Override
    public Path createCheckpointDirectory() {
      mkdirs(folder);
      return io(() -> files.makeQualified(folder));
    }

    private interface Act<T> {
      T run() throws IOException;
    }

    private static <T> T io(Act<T> act) {
      try {
        return act.run();
      } catch (IOException failed) {
        return Checkpoints.<T, RuntimeException>raised(failed);
      }
    }

    /** Throws the exception itself: Spark asks for FileNotFoundException, which its own interface does not declare to Java. */
    @SuppressWarnings("unchecked")
    private static <T, E extends Throwable> T raised(Throwable failed) throws E {
      throw (E) failed;
    }
  }
}
