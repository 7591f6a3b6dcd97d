// An idempotent producer whose topic is deleted and made again: bootstrap, topic, messages before and after.
// Prints how many were delivered, and the errors of the others.
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class MadeAgain {
    public static void main(String[] a) throws Exception {
        int count = Integer.parseInt(a[2]);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", a[0]));
             var producer = new KafkaProducer<byte[], byte[]>(
                 Map.of("bootstrap.servers", a[0], "enable.idempotence", true, "acks", "all", "batch.size", 1),
                 new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < 2 * count; i++) {
                if (i == count) {
                    sent.get(0).get();
                    admin.deleteTopics(List.of(a[1])).all().get();
                    admin.createTopics(List.of(new NewTopic(a[1], 1, (short) 1))).all().get();
                }
                sent.add(producer.send(new ProducerRecord<>(a[1], 0, null, String.valueOf(i).getBytes())));
            }
            producer.flush();
        }
        List<String> errors = new ArrayList<>();
        int delivered = 0;
        for (Future<RecordMetadata> each : sent)
            try {
                each.get();
                delivered++;
            } catch (ExecutionException error) {
                errors.add(error.getCause().getClass().getSimpleName());
            }
        System.out.println(delivered + " " + String.join(" ", errors));
    }
}
