// A producer with a transactional id: bootstrap.  Prints what it is told.
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Transactional {
    public static void main(String[] a) {
        try (var producer = new KafkaProducer<byte[], byte[]>(
                 Map.of("bootstrap.servers", a[0], "transactional.id", "tx"),
                 new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            System.out.println("begun");
        } catch (Exception error) {
            System.out.println(error.getMessage());
        }
    }
}
