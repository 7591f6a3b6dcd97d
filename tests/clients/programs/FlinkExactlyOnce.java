import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Writes what comes into one topic to another in capital letters, exactly once, until it is killed: bootstrap, from, to,
 * directory of checkpoints.  It goes on from the newest checkpoint there.
 */
public class FlinkExactlyOnce {
  public static void main(String[] arguments) throws Exception {
    Path checkpoints = Path.of(arguments[3]);
    Configuration configuration = new Configuration();
    configuration.setString("execution.checkpointing.storage", "filesystem");
    configuration.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
    configuration.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
    try (var found = Files.walk(checkpoints)) {
      found.filter(path -> path.endsWith("_metadata"))
          .max(Comparator.comparing(path -> path.toFile().lastModified()))
          .ifPresent(path -> configuration.setString("execution.savepoint.path", path.getParent().toUri().toString()));
    }
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
    environment.setParallelism(2);
    environment.enableCheckpointing(500);
    KafkaSource<String> source = KafkaSource.<String>builder()
        .setBootstrapServers(arguments[0]).setTopics(arguments[1]).setGroupId("flink-exactly-once")
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setValueOnlyDeserializer(new SimpleStringSchema()).build();
    KafkaSink<String> sink = KafkaSink.<String>builder()
        .setBootstrapServers(arguments[0]).setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .setTransactionalIdPrefix(arguments[2]).setProperty("transaction.timeout.ms", "60000")
        .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
            .setTopic(arguments[2]).setValueSerializationSchema(new SimpleStringSchema()).build())
        .build();
    environment.fromSource(source, WatermarkStrategy.noWatermarks(), "in").map(line -> line.toUpperCase()).sinkTo(sink);
    environment.execute();
  }
}
