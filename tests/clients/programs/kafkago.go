package main

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

func kafkaGoProduce(bootstrap, topic, codec string, count int64) {
	codecs := map[string]kafka.Compression{"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd}
	writer := &kafka.Writer{Addr: kafka.TCP(bootstrap), Topic: topic, BatchSize: 10, BatchTimeout: 50 * time.Millisecond,
		RequiredAcks: kafka.RequireAll, Compression: codecs[codec], AllowAutoTopicCreation: true,
		Balancer: kafka.BalancerFunc(func(kafka.Message, ...int) int { return 0 }),
		Completion: func(messages []kafka.Message, err error) {
			check(err)
			for _, sent := range messages {
				line(message{Offset: sent.Offset})
			}
		}}
	for i := int64(0); i < count; i += 10 {
		var messages []kafka.Message
		for j := i; j < min(i+10, count); j++ {
			messages = append(messages, kafka.Message{Time: at(j), Key: fmt.Appendf(nil, "k-%d", j),
				Value:   fmt.Appendf(nil, "v-%d-größe", j),
				Headers: []kafka.Header{{Key: "h", Value: fmt.Appendf(nil, "%d", j)}}})
		}
		check(writer.WriteMessages(context.Background(), messages...))
	}
	check(writer.Close())
}

func kafkaGoTake(reader *kafka.Reader, count int64) kafka.Message {
	deadline, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var last kafka.Message
	for ; count > 0; count-- {
		m, err := reader.FetchMessage(deadline)
		check(err)
		header := ""
		if len(m.Headers) > 0 {
			header = string(m.Headers[0].Value)
		}
		line(message{m.Offset, string(m.Key), string(m.Value), header, m.Time.UnixMilli()})
		last = m
	}
	return last
}

func kafkaGoReader(config kafka.ReaderConfig) *kafka.Reader {
	config.MaxBytes, config.MaxWait = 10_000_000, 200*time.Millisecond
	return kafka.NewReader(config)
}

func kafkaGoRead(bootstrap, topic, from string, count int64) {
	reader := kafkaGoReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic})
	check(reader.SetOffset(number(from)))
	kafkaGoTake(reader, count)
	check(reader.Close())
}

func kafkaGoGroup(bootstrap, topic, group string, count int64) {
	config := kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, GroupID: group, StartOffset: kafka.FirstOffset}
	reader := kafkaGoReader(config)
	check(reader.CommitMessages(context.Background(), kafkaGoTake(reader, count)))
	check(reader.Close())
}
