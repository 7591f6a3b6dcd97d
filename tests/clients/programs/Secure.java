// Produces a message with Kafka's own client in each of several ways to connect: topic, then files of properties.
// Prints the error of each on a line of its own, an empty one for none.
import java.io.FileReader;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.StringSerializer;

public class Secure {
    public static void main(String[] a) throws Exception {
        for (int i = 1; i < a.length; i++) {
            Properties p = new Properties();
            try (var file = new FileReader(a[i])) {
                p.load(file);
            }
            p.put("key.serializer", StringSerializer.class);
            p.put("value.serializer", StringSerializer.class);
            p.put("max.block.ms", "60000");
            p.put("request.timeout.ms", "50000");
            p.put("delivery.timeout.ms", "60000");
            String error = "";
            try (var producer = new KafkaProducer<String, String>(p)) {
                producer.send(new ProducerRecord<>(a[0], "from Java")).get();
            } catch (ExecutionException e) {
                error = e.getCause().toString();
            } catch (Exception e) {
                error = e.toString();
            }
            System.out.println(error.replace('\n', ' '));
        }
    }
}
