// Transactions of Kafka's own client: bootstrap, topic, group.  Prints a line for each step.
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static KafkaProducer<String, String> producer(String bootstrap, String id) {
        return new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap, "transactional.id", id), new StringSerializer(), new StringSerializer());
    }

    public static void main(String[] a) throws Exception {
        var part = new TopicPartition(a[1], 0);
        try (var old = producer(a[0], a[2]); var other = producer(a[0], a[2])) {
            old.initTransactions();
            for (int i = 0; i < 6; i++) {
                old.beginTransaction();
                old.send(new ProducerRecord<>(a[1], 0, null, "v" + i)).get();
                old.sendOffsetsToTransaction(
                    Map.of(part, new OffsetAndMetadata(10 + i)), new ConsumerGroupMetadata(a[2]));
                if (i % 3 == 1) old.abortTransaction(); else old.commitTransaction();
            }
            old.beginTransaction();
            old.send(new ProducerRecord<>(a[1], 0, null, "zombie")).get();
            other.initTransactions();
            try {
                old.commitTransaction();
                System.out.println("the zombie has committed");
            } catch (ProducerFencedException fenced) {
                System.out.println("fenced");
            }
            other.beginTransaction();
            other.send(new ProducerRecord<>(a[1], 0, null, "last")).get();
            other.commitTransaction();
        }
        var settings = Map.<String, Object>of("bootstrap.servers", a[0], "group.id", a[2], "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            System.out.println(consumer.committed(java.util.Set.of(part)).get(part).offset());
            consumer.assign(List.of(part));
            consumer.seekToBeginning(List.of(part));
            long end = consumer.endOffsets(List.of(part)).get(part);
            while (consumer.position(part) < end)
                for (var record : consumer.poll(Duration.ofMillis(200))) System.out.println(record.value());
        }
    }
}
