// Produces a message with franz-go in each of several ways to connect: topic, and a file with a JSON object per line
// (bootstrap, user, password, ca, certificate, key).  Prints the error of each, "" for none, as a line of JSON.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type access struct {
	Bootstrap, User, Password, Ca, Certificate, Key string
}

func produce(one access, topic string) error {
	pem, err := os.ReadFile(one.Ca)
	if err != nil {
		return err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	config.RootCAs.AppendCertsFromPEM(pem)
	if one.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(one.Certificate, one.Key)
		if err != nil {
			return err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	options := []kgo.Opt{kgo.SeedBrokers(one.Bootstrap), kgo.DialTLSConfig(config), kgo.RequestRetries(1),
		kgo.RecordRetries(1), kgo.RecordDeliveryTimeout(4 * time.Second)}
	if one.User != "" {
		options = append(options, kgo.SASL(scram.Auth{User: one.User, Pass: one.Password}.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	limit, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	if err := client.Ping(limit); err != nil {
		return err
	}
	return client.ProduceSync(limit, &kgo.Record{Topic: topic, Value: []byte("from franz-go")}).FirstErr()
}

func main() {
	file, err := os.Open(os.Args[2])
	if err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var one access
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			panic(err)
		}
		text := ""
		if err := produce(one, os.Args[1]); err != nil {
			text = err.Error()
		}
		json.NewEncoder(os.Stdout).Encode(text)
	}
}
