import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Reads what one topic has now and writes it to another in capital letters: bootstrap, from, to. */
public class Flink {
  public static void main(String[] arguments) throws Exception {
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
    environment.setParallelism(2);
    environment.enableCheckpointing(500);
    KafkaSource<String> source = KafkaSource.<String>builder()
        .setBootstrapServers(arguments[0]).setTopics(arguments[1]).setGroupId("flink")
        .setStartingOffsets(OffsetsInitializer.earliest()).setBounded(OffsetsInitializer.latest())
        .setValueOnlyDeserializer(new SimpleStringSchema()).build();
    KafkaSink<String> sink = KafkaSink.<String>builder()
        .setBootstrapServers(arguments[0]).setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
        .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
            .setTopic(arguments[2]).setValueSerializationSchema(new SimpleStringSchema()).build())
        .build();
    environment.fromSource(source, WatermarkStrategy.noWatermarks(), "in").map(line -> line.toUpperCase()).sinkTo(sink);
    environment.execute();
  }
}
