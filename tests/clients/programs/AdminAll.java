// Asks everything that Kafka's own AdminClient can ask: bootstrap, topic; prints one JSON object of names and outcomes.
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaFilter;

public class AdminAll {
    static final List<String> outcomes = new ArrayList<>();

    static void ask(String name, Callable<?> question) {
        String outcome = "";
        try {
            question.call();
        } catch (ExecutionException error) {
            outcome = error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            outcome = error.toString();
        }
        outcomes.add("\"" + name + "\":\"" + outcome + "\"");
    }

    public static void main(String[] a) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", a[0], "default.api.timeout.ms", "20000", "request.timeout.ms", "20000");
        try (Admin c = Admin.create(settings)) {
            String t = a[1];
            var part = new TopicPartition(t, 0);
            var broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
            ask("createTopics", () -> c.createTopics(List.of(new NewTopic(t, 1, (short) 1))).all().get());
            ask("createTopics, 3 replicas", () -> c.createTopics(List.of(new NewTopic(t + "-3", 1, (short) 3))).all().get());
            ask("describeTopics", () -> c.describeTopics(List.of(t)).allTopicNames().get());
            ask("describeCluster", () -> c.describeCluster().nodes().get());
            ask("describeConfigs", () -> c.describeConfigs(List.of(broker)).all().get());
            ask("describeConfigs, logger", () -> c.describeConfigs(
                List.of(new ConfigResource(ConfigResource.Type.BROKER_LOGGER, "0"))).all().get());
            ask("incrementalAlterConfigs, brokers", () -> c.incrementalAlterConfigs(Map.of(
                new ConfigResource(ConfigResource.Type.BROKER, ""),
                List.of(new AlterConfigOp(new ConfigEntry("log.retention.ms", "1000"), AlterConfigOp.OpType.SET)))).all().get());
            ask("listConfigResources", () -> c.listConfigResources().all().get());
            ask("listPartitionReassignments", () -> c.listPartitionReassignments().reassignments().get());
            ask("electLeaders", () -> c.electLeaders(ElectionType.PREFERRED, Set.of(part)).all().get());
            ask("describeAcls", () -> c.describeAcls(AclBindingFilter.ANY).values().get());
            ask("describeClientQuotas", () -> c.describeClientQuotas(ClientQuotaFilter.all()).entities().get());
            ask("describeUserScramCredentials", () -> c.describeUserScramCredentials().all().get());
            ask("describeProducers", () -> c.describeProducers(List.of(part)).all().get());
            ask("listTransactions", () -> c.listTransactions().all().get());
            ask("describeTransactions", () -> c.describeTransactions(List.of("x")).all().get());
            ask("describeFeatures", () -> c.describeFeatures().featureMetadata().get());
            ask("describeMetadataQuorum", () -> c.describeMetadataQuorum().quorumInfo().get());
            ask("listGroups", () -> c.listGroups().all().get());
            ask("describeConsumerGroups", () -> c.describeConsumerGroups(List.of("nobody")).all().get());
            ask("listClientMetricsResources", () -> c.listClientMetricsResources().all().get());
            ask("describeLogDirs", () -> c.describeLogDirs(List.of(0)).allDescriptions().get());
            ask("describeReplicaLogDirs", () -> c.describeReplicaLogDirs(
                List.of(new TopicPartitionReplica(t, 0, 0))).all().get());
            ask("listOffsets, largest time", () -> c.listOffsets(Map.of(part, OffsetSpec.maxTimestamp())).all().get());
            ask("listOffsets, local", () -> c.listOffsets(Map.of(part, OffsetSpec.earliestLocal())).all().get());
            ask("alterConsumerGroupOffsets", () -> c.alterConsumerGroupOffsets(
                t, Map.of(part, new OffsetAndMetadata(0))).all().get());
            ask("deleteConsumerGroups", () -> c.deleteConsumerGroups(List.of(t)).all().get());
            ask("deleteTopics", () -> c.deleteTopics(List.of(t)).all().get());
        }
        System.out.println("{" + String.join(",", outcomes) + "}");
        System.exit(0);
    }
}
