// produce|read|group as tests/clients/adapters.py describes them, with franz-go, sarama or kafka-go (first argument).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

type message struct {
	Offset    int64  `json:"offset"`
	Key       string `json:"key"`
	Value     string `json:"value"`
	Header    string `json:"header"`
	Timestamp int64  `json:"timestamp"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func line(m message) { check(json.NewEncoder(os.Stdout).Encode(m)) }

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return n
}

func main() {
	library, verb, bootstrap, topic, third, count := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], number(os.Args[6])
	verbs := map[string]func(string, string, string, int64){
		"franz-produce": franzProduce, "franz-read": franzRead, "franz-group": franzGroup,
		"sarama-produce": saramaProduce, "sarama-read": saramaRead, "sarama-group": saramaGroup,
		"kafka-go-produce": kafkaGoProduce, "kafka-go-read": kafkaGoRead, "kafka-go-group": kafkaGoGroup,
	}
	verbs[library+"-"+verb](bootstrap, topic, third, count)
}

func at(i int64) time.Time { return time.UnixMilli(1700000000000 + i*1000) }

func franz(bootstrap string, options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap), kgo.FetchMaxWait(200*time.Millisecond))...)
	check(err)
	return client
}

func franzProduce(bootstrap, topic, codec string, count int64) {
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	client := franz(bootstrap, kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(50*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.AllowAutoTopicCreation())
	defer client.Close()
	for i := int64(0); i < count; i += 10 {
		var records []*kgo.Record
		for j := i; j < min(i+10, count); j++ {
			records = append(records, &kgo.Record{Topic: topic, Timestamp: at(j), Key: fmt.Appendf(nil, "k-%d", j),
				Value:   fmt.Appendf(nil, "v-%d-größe", j),
				Headers: []kgo.RecordHeader{{Key: "h", Value: fmt.Appendf(nil, "%d", j)}}})
		}
		for _, result := range client.ProduceSync(context.Background(), records...) {
			check(result.Err)
			line(message{Offset: result.Record.Offset})
		}
	}
}

func franzTake(client *kgo.Client, count int64) *kgo.Record {
	deadline, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var last *kgo.Record
	for got := int64(0); got < count; {
		fetches := client.PollRecords(deadline, int(count-got))
		check(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			got++
			header := ""
			if len(r.Headers) > 0 {
				header = string(r.Headers[0].Value)
			}
			line(message{r.Offset, string(r.Key), string(r.Value), header, r.Timestamp.UnixMilli()})
			last = r
		})
	}
	return last
}

func franzRead(bootstrap, topic, from string, count int64) {
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(number(from))}}
	client := franz(bootstrap, kgo.ConsumePartitions(start))
	defer client.Close()
	franzTake(client, count)
}

func franzGroup(bootstrap, topic, group string, count int64) {
	client := franz(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit())
	last := franzTake(client, count)
	check(client.CommitRecords(context.Background(), last))
	client.Close()
}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	return config
}

func saramaProduce(bootstrap, topic, codec string, count int64) {
	config := saramaConfig()
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Flush.Messages = 10
	config.Producer.Flush.Frequency = 200 * time.Millisecond
	config.Producer.Partitioner = sarama.NewManualPartitioner
	check(config.Producer.Compression.UnmarshalText([]byte(codec)))
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	check(err)
	for i := int64(0); i < count; i += 10 {
		var messages []*sarama.ProducerMessage
		for j := i; j < min(i+10, count); j++ {
			messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: 0, Timestamp: at(j),
				Key: sarama.StringEncoder(fmt.Sprintf("k-%d", j)), Value: sarama.StringEncoder(fmt.Sprintf("v-%d-größe", j)),
				Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: fmt.Appendf(nil, "%d", j)}}})
		}
		check(producer.SendMessages(messages))
		for _, sent := range messages {
			line(message{Offset: sent.Offset})
		}
	}
	check(producer.Close())
}

func saramaLine(m *sarama.ConsumerMessage) {
	header := ""
	if len(m.Headers) > 0 {
		header = string(m.Headers[0].Value)
	}
	line(message{m.Offset, string(m.Key), string(m.Value), header, m.Timestamp.UnixMilli()})
}

func saramaRead(bootstrap, topic, from string, count int64) {
	consumer, err := sarama.NewConsumer([]string{bootstrap}, saramaConfig())
	check(err)
	partition, err := consumer.ConsumePartition(topic, 0, number(from))
	check(err)
	for ; count > 0; count-- {
		select {
		case m := <-partition.Messages():
			saramaLine(m)
		case <-time.After(time.Minute):
			check(fmt.Errorf("%d messages are missing", count))
		}
	}
	check(partition.Close())
	check(consumer.Close())
}

type saramaHandler struct {
	count int64
	stop  context.CancelFunc
}

func (*saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h *saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		saramaLine(m)
		session.MarkMessage(m, "")
		if h.count--; h.count == 0 {
			session.Commit()
			h.stop()
			return nil
		}
	}
	return nil
}

func saramaGroup(bootstrap, topic, group string, count int64) {
	consumers, err := sarama.NewConsumerGroup([]string{bootstrap}, group, saramaConfig())
	check(err)
	context, stop := context.WithTimeout(context.Background(), time.Minute)
	handler := &saramaHandler{count, stop}
	for context.Err() == nil && handler.count > 0 {
		check(consumers.Consume(context, []string{topic}, handler))
	}
	check(consumers.Close())
}
